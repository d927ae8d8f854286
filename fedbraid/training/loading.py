"""A recorded run, read back: its history, its numbers and its model, without training."""

from __future__ import annotations

import logging
from dataclasses import replace
from os import PathLike
from pathlib import Path

from torch import nn

from fedbraid import data as known_data
from fedbraid import models
from fedbraid.config.schema import Config, to_dict
from fedbraid.core.chain import Chain
from fedbraid.core.model import Model
from fedbraid.core.outputs import answering_logits
from fedbraid.data.dataset import Dataset, Partition, check_dataset, check_partition
from fedbraid.data.sample_facts import BY_CLIENTS, Facts
from fedbraid.errors import UserError, first_line
from fedbraid.report.run_groups import RunRecord
from fedbraid.report.summaries import summarise
from fedbraid.storage.files import damaged, read_tensors
from fedbraid.strands import parser as methods
from fedbraid.strands.parser import Own, own_strands
from fedbraid.training.network import network_of
from fedbraid.training.results import Run
from fedbraid.training.run_directory import SEEDS, RunDirectory
from fedbraid.training.simulation import divided_by, fingerprint, partition_of
from fedbraid.training.user_objects import UserObjects

log = logging.getLogger("fedbraid")


def load(
    place: str | PathLike[str],
    *,
    data: Dataset | None = None,
    partition: Partition | None = None,
    model: models.Own | None = None,
    own: Own = (),
    data_dir: str | PathLike[str] | None = None,
) -> Run:
    """The run in a directory, as `run` returned it; its model is on the CPU. Nothing is trained or written.

    What the run was given in Python is given again: a data set, a network, strands of one's own. The partition may be
    left out; without it `label_counts` is None.
    """
    directory = RunDirectory(Path(place))
    check_over(directory)
    directory.check_files("config.toml", directory.log.name, "summary.json", directory.model.name)
    config = directory.config()
    objects = UserObjects(data, partition, model, None, own_strands(own), Path(data_dir) if data_dir else None)
    _check_brought(config, objects, directory.path)
    dataset = _dataset(config, objects)
    chain = _chain(config, objects)
    network = _network(config, directory, objects, dataset, chain)
    rounds = directory.rounds()
    summary = summarise(rounds, config.evaluate.target or None)
    recorded = directory.summary()
    if recorded.get("rounds", len(rounds)) != len(rounds):
        raise damaged(directory.log, f"it has {len(rounds)} rounds where the summary has {recorded['rounds']}")
    summary |= {key: recorded[key] for key in recorded.keys() - summary.keys()}  # what only the run itself could know
    counts = _label_counts(config, directory, objects, dataset, network)
    module = trained_module(network, directory)
    return Run(config, rounds, summary, counts, module, directory.path, chain.averaging)


def read_record(directory: RunDirectory, objects: UserObjects) -> RunRecord:
    """Return what a report needs of a run, which need not be finished.

    Data, strands or a network that are not here are no obstacle: the report then lacks what they say, with a warning.
    """
    config = directory.config()
    record = RunRecord(config.called, config.seed, tuple(directory.rounds()), to_dict(config), None)
    try:
        chain = _chain(config, objects)
        record = replace(record, averages=chain.averaging)
        if not directory.reached:  # the first checkpoint says which data these are
            return record
        _check_brought(config, objects, directory.path)
        dataset = _dataset(config, objects)
        network = _network(config, directory, objects, dataset, chain)
        return replace(record, label_counts=_label_counts(config, directory, objects, dataset, network))
    except UserError as error:
        log.warning("the report on %s does not show the clients' labels: %s", directory.path, first_line(error))
        return record


def check_over(directory: RunDirectory) -> None:
    """Refuse a directory that holds no run, several, or one whose model is not written yet."""
    path = directory.path
    if not directory.started:
        one = next(iter(sorted(path.glob(SEEDS))), None)
        if one:
            raise UserError(f"{path} holds a comparison; name one of its runs, such as {one.parent}")
        raise UserError(f"{path} holds no run: it has no config.toml")
    if not directory.over:
        done, due = directory.reached, directory.config().rounds
        raise UserError(
            f"{path} is not finished: {done} of its {due} rounds are saved; continue it first, with "
            f"fedbraid run --out {path} --resume, or fedbraid.run(…, out=…, resume=True)"
        )


def _check_brought(config: Config, objects: UserObjects, path: Path) -> None:
    for table, names in (("data", [*known_data.names(), BY_CLIENTS]), ("model", models.names())):
        name = getattr(config, table).name
        known_by_name = models.is_named(name) if table == "model" else name in names
        if not known_by_name and table not in objects.supplied:
            raise UserError(
                f"{path} was given its {table} in Python ({name!r}), and what it is was not recorded; give it again: "
                f"fedbraid.load(…, {table}=…)"
            )


def _dataset(config: Config, objects: UserObjects) -> Dataset:
    if objects.data is None and config.data.name == BY_CLIENTS:
        return Facts.read(config.data.options).made_up()
    dataset = objects.data or known_data.load(config.data.name, objects.data_dir, **config.data.options)
    check_dataset(dataset)
    return dataset


def _network(config: Config, directory: RunDirectory, objects: UserObjects, dataset: Dataset, chain: Chain) -> Model:
    """The network before its first round, which is not asked whether there is a GPU."""
    here = replace(config, engine=replace(config.engine, device="cpu"))
    network = network_of(here, chain, dataset, objects.model)
    begun = directory.initial_weights() if objects.model is not None else None
    return network if begun is None else network.beginning_with(begun)


def _chain(config: Config, objects: UserObjects) -> Chain:
    try:
        return methods.parse(config.method, config.strands, objects.strands)
    except UserError as error:
        raise UserError(f"{error}; a strand of your own is given again: fedbraid.load(…, own=[MyStrand])") from None


def trained_module(network: Model, directory: RunDirectory) -> nn.Module:
    """The network with the weights that the run ended with; its call gives logits."""
    file, module = directory.model, network.evaluating
    tensors = read_tensors(file)
    broken = next((name for name, t in tensors.items() if t.is_floating_point() and not t.isfinite().all()), None)
    if broken:
        raise UserError(
            f"the model in {file} is not finite ({broken}): its training diverged; train again with a smaller "
            "optimizer.lr"
        )
    try:
        missing, unknown = module.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise UserError(f"{file} does not fit the network: {first_line(error)}") from None
    lost = [*unknown, *(name for name in missing if name in {*network.layout.names, *network.buffers.names})]
    if lost:
        raise UserError(f"{file} does not fit the network: {lost[0]!r} is only in one of them; give the same network")
    return answering_logits(module)


def _label_counts(
    config: Config, directory: RunDirectory, objects: UserObjects, dataset: Dataset, network: Model
) -> list[list[int]] | None:
    known = config.partition.name in [entry.name for entry in known_data.PARTITIONS]
    if dataset.task != "classification" or (objects.partition is None and not known):
        return None
    partition = objects.partition if objects.partition is not None else partition_of(config, dataset)
    check_partition(dataset, partition)
    partition = divided_by(config, dataset, partition).training
    begun = next(network.evaluating.parameters())
    if directory.fingerprint != fingerprint(dataset, partition, network.initial(begun.dtype, begun.device)[0]):
        log.warning("%s was trained on other data or another partition than are here now", directory.path)
        return None
    counts: list[list[int]] = partition.label_counts(dataset.train.y, dataset.classes).tolist()
    return counts
