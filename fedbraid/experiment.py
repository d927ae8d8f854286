"""A federation put together from its configuration."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbraid import calibration, data, methods, models
from fedbraid.analyses.catalogue import watches
from fedbraid.analyses.watch import Scored, of_scored
from fedbraid.config import Config, ModelConfig, optimizer_of
from fedbraid.core.chain import Chain, overrides
from fedbraid.core.local import LocalJob
from fedbraid.core.model import Model, refuse_other_tensors, refuse_random_outputs
from fedbraid.core.round import begin
from fedbraid.core.sampling import coming
from fedbraid.core.strand import Setup, Strand
from fedbraid.data.dataset import Dataset, Partition, Split, check_dataset, check_partition
from fedbraid.data.groups import class_groups
from fedbraid.data.noise import noisy
from fedbraid.data.validation import Divided, divided
from fedbraid.engines.cluster import spread
from fedbraid.engines.cpu import keep_freed_memory
from fedbraid.engines.local import Kind, Local, choose
from fedbraid.engines.memory import free_memory
from fedbraid.engines.samples import Clients, Samples
from fedbraid.errors import UserError, first_line
from fedbraid.evaluation import by_group, launch_evaluation, per_client, validation
from fedbraid.inputs import Inputs
from fedbraid.metrics import check_metrics
from fedbraid.models.last import outputs
from fedbraid.rounds import Federation, Line, arrivals
from fedbraid.store import ClientStore

log = logging.getLogger("fedbraid")

CLIENTS = 10
"""How many there are where nothing says otherwise."""
KNOW_THEIR_CLIENTS = {"natural", "assignment", "niid2", "flower"}
"""Partitions that know how many clients they make."""
DRAWN_ALIKE = "clients drawn alike"
"""The need of a strand whose account is for clients of equal chances."""
HELD_ELSEWHERE = "roster"
"""What is recorded as the partition where clients are elsewhere, and who holds what is theirs to know."""


@dataclass(frozen=True)
class Given:
    """What a user brings instead of naming it in the configuration."""

    data: Dataset | None = None
    partition: Partition | None = None
    model: models.Own | None = None
    chain: Chain | None = None
    strands: tuple[type[Strand], ...] = ()
    data_dir: Path | None = None
    weights: Mapping[str, Tensor] | None = None  # with which a recorded run began, where the network was brought along

    @property
    def brought(self) -> list[str]:
        """The tables of the configuration that an object stands for."""
        return [table for table in ("data", "partition", "model") if getattr(self, table) is not None]

    @property
    def settled(self) -> list[str]:
        """Those of them whose settings change nothing: all but what makes a network, which takes them as arguments."""
        makes = self.model is not None and not isinstance(self.model, nn.Module)
        return [table for table in self.brought if not (table == "model" and makes)]

    def chain_of(self, config: Config) -> Chain:
        """The chain that was brought, or the one that is named; with the hyper-parameters of the configuration."""
        if self.chain is not None:
            return methods.with_settings(self.chain, config.strands)
        return methods.parse(config.method, config.strands, self.strands)


@dataclass(eq=False)
class Experiment(Federation):
    """A federation whose clients' data are all here."""

    dataset: Dataset
    partition: Partition  # of what is trained on
    clients: Clients
    test: Samples
    validation: Samples | None  # that nobody trains on, where any are held out

    @property
    def local(self) -> Local:
        """The engine, where it is one of this machine and somebody wants to look into it."""
        assert isinstance(self.engine, Local)
        return self.engine

    @property
    def sizes(self) -> np.ndarray:
        return self.clients.sizes

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.dataset, self.partition, self.setup.w)

    @cached_property
    def label_counts(self) -> np.ndarray:
        """[clients, classes] on the host."""
        counts: np.ndarray = self.clients.label_counts.cpu().numpy()
        return counts

    @property
    def label_table(self) -> list[list[int]] | None:
        return self.label_counts.astype(np.int64).tolist() if self.dataset.task == "classification" else None

    @property
    def inputs(self) -> Inputs:
        return Inputs.of(self.dataset)

    def scored(self) -> Line:
        w, buffers = self.deployed()
        scores = launch_evaluation(self.model, w, buffers, self.test, self.config.evaluate.metrics)
        held_out = None if self.validation is None else launch_evaluation(self.model, w, buffers, self.validation)
        watches = self.watches if self.watched else ()

        def line() -> dict[str, Any]:
            metrics, correct = scores()
            if self.config.evaluate.per_client and metrics["per_class"] is not None:
                counts = self.label_counts
                metrics["client_accuracy"] = per_client(metrics["per_class"], correct, self.partition, counts)
            if self.config.evaluate.groups and metrics["per_class"] is not None:
                metrics["group_accuracy"] = by_group(metrics["per_class"], class_groups(self.label_counts.sum(0)))
            if watches and metrics["per_class"] is not None:
                metrics |= of_scored(watches, Scored(metrics["per_class"], correct, self.partition, self.label_counts))
            if held_out is not None:
                others, _ = held_out()
                metrics |= validation(others["accuracy"], others["loss"])
            return metrics

        return line


def fingerprint(dataset: Dataset, partition: Partition, w: Tensor) -> str:
    """A few letters that change with the data, its partition or the initial model."""
    digest = hashlib.sha256()
    for split in (dataset.train, dataset.test):
        some = split.x[:: max(1, len(split) // 1000)]  # a thousand samples tell data sets apart
        digest.update(repr((split.x.shape, split.x.dtype)).encode())
        digest.update(np.ascontiguousarray(some).tobytes() + np.ascontiguousarray(split.y).tobytes())
    digest.update(partition.sizes.tobytes())
    digest.update(np.concatenate(partition.clients).tobytes())
    digest.update(w.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def build(config: Config, given: Given, directory: Path | None = None, beside: Experiment | None = None) -> Experiment:
    """The federation before its first round. What it has in common with one `beside` it is held once."""
    device, dtype = ready(config)
    if beside is not None and beside.config.data == config.data and given.data in (None, beside.dataset):
        dataset = beside.dataset
    else:
        dataset = given.data or data.load(config.data.name, given.data_dir, **config.data.options)
        check_dataset(dataset)
    partition = given.partition if given.partition is not None else partition_of(config, dataset)
    check_partition(dataset, partition)
    split = divided_by(config, dataset, partition)
    chain = given.chain_of(config)
    model = network_of(config, chain, dataset, given.model)
    model = model if given.weights is None else model.beginning_with(given.weights)
    check_needs(config, chain)
    check_fit(config, chain, dataset, len(partition))
    there = beside if beside is not None and _same_place(beside, config, dataset) else None
    plain = there is not None and there.partition.noise is None and partition.noise is None
    if there is not None and plain:
        samples = there.clients.samples
    else:
        samples = Samples.of(dataset, noisy(dataset, partition), dtype, device, config.augment)
    clients = Clients.of(dataset, split.training, dtype, device, config.augment, samples)
    held_out = samples.at(torch.as_tensor(split.validation).to(device)) if len(split.validation) else None
    setup = setup_of(config, model, dataset, clients, len(partition))
    kind = choose(config.engine.here, model, clients.samples)
    in_parts = config.engine.chunk or kind != "loop" or config.engine.kind == "ray"
    if "each model" in chain.needs or not in_parts:
        check_memory(config, setup, "" if in_parts else ", or engine.chunk to a few")
    store = ClientStore({s.name: s.init_client(setup) for s in chain}, directory, on_disk=config.save.clients_on_disk)
    optimizer = optimizer_of(config)
    job = LocalJob(chain, model, optimizer, dataset.task)

    def engine(kind: Kind) -> Local:
        return Local(
            job,
            setup,
            clients,
            config.local,
            store,
            kind,
            chunk=config.engine.chunk,
            capacity=setup.cohort,
            workers=config.engine.workers,
            precision=config.engine.precision,
            compile_seconds=config.engine.compile_seconds,
        )

    usual = engine(kind)
    test = there.test if there else Samples.of(dataset, dataset.test, dtype, device)
    server = begin(chain, setup)
    looking = watches(config.analyses)
    made = Experiment(
        config,
        chain,
        model,
        optimizer,
        setup,
        usual,
        store,
        server,
        dataset,
        split.training,
        clients,
        test,
        held_out,
        watches=looking,
    )
    local = made.engine = calibration.settled(made, engine)
    if config.engine.kind == "ray":
        made.engine, made.store = spread(local, store, config.engine, beside.engine if beside is not None else None)
    return made


def ready(config: Config) -> tuple[torch.device, torch.dtype]:
    """Where and with which numbers a federation computes, once this process is set up for it."""
    device = device_of(config.engine.device)
    if device.type == "cpu":
        keep_freed_memory()
    else:
        coarse = config.engine.precision != "highest"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = coarse
    return device, getattr(torch, config.engine.dtype)


def network_of(config: Config, chain: Chain, dataset: Dataset, own: models.Own | None = None) -> Model:
    """The network for samples such as the data set's, as the chain's strands want it."""
    if own is not None:
        check_named(config, own)
        module = _tried(models.made(own, config.seed, config.model.options), config, dataset)
    else:
        module = models.build(
            config.model.name,
            dataset.shape,
            dataset.classes,
            tokens=dataset.tokens,
            seed=config.seed,
            **config.model.options,
        )
    return Model.of(altered(module, chain)).to(getattr(torch, config.engine.dtype), device_of(config.engine.device))


def check_named(config: Config, own: models.Own) -> None:
    """That settings do not ask for another network than the one that was brought along."""
    asked, name = config.model.name, models.name_of(own)
    if "model.name" in config.varied or asked not in (ModelConfig.name, name):
        raise UserError(f"model.name={asked}, but the network was given: {name}; leave out one of the two")


def _tried(module: nn.Module, config: Config, dataset: Dataset) -> nn.Module:
    """A network that was brought along, once it is known what it returns and with which weights it computes."""
    dtype, one = getattr(torch, config.engine.dtype), Split(dataset.train.x[:1], dataset.train.y[:1])
    samples = Samples.of(dataset, one, dtype, device_of(config.engine.device))
    x = _first_twice(samples)
    with _taking(samples, dataset):
        module = models.with_last_layer(module, x, dtype)
        model = Model.of(module).to(dtype, x.device)
        refuse_random_outputs(model, x)
        refuse_other_tensors(model, x)
    return module


def setup_of(config: Config, model: Model, dataset: Dataset, clients: Clients, population: int) -> Setup:
    """What is known before the first round, once the network is known to take the clients' samples."""
    samples, sampling = clients.samples, config.sampling
    _check_network(model, samples, dataset)
    w, buffers = model.initial(samples.dtype, samples.x.device)
    with torch.no_grad():
        width = model.predict(w, buffers, samples.inputs(clients.order[:2])).features.shape[-1]
    fixed = None if sampling.scheme == "bernoulli" else sampling.clients or population
    bins = clients.label_counts.shape[1]
    return Setup(
        w,
        buffers,
        model.layout,
        dataset.classes,
        bins,
        width,
        population,
        fixed,
        config.rounds,
        config.seed,
        models.last_layer(model.training),
        fixed or coming(population, sampling.rate),
        model.frozen,
    )


def _same_place(beside: Experiment, config: Config, dataset: Dataset) -> bool:
    """Whether the data that another federation has on the device are this one's too."""
    here, there = ((c.engine.device, c.engine.dtype, c.augment) for c in (config, beside.config))
    return beside.dataset is dataset and here == there


def altered(module: nn.Module, chain: Chain) -> nn.Module:
    """The network as the chain's strands want it."""
    for strand in chain.using("model"):
        module = strand.model(copy.deepcopy(module))
    return module


def partition_of(config: Config, dataset: Dataset) -> Partition:
    """Who holds what under this configuration."""
    part = config.partition
    clients = part.clients or (None if part.name in KNOW_THEIR_CLIENTS else CLIENTS)
    return data.make_partition(dataset, part.name, clients, config.seed, **part.options)


def divided_by(config: Config, dataset: Dataset, partition: Partition) -> Divided:
    """What is trained on under this configuration, and what is held out of it."""
    return divided(partition, dataset.train.y, config.evaluate.validation, config.seed)


def check_brought(config: Config, given: Given, place: Path, how: str) -> None:
    """A recorded run that was given objects in Python needs them again; `how` says how, of `{table}`."""
    if config.partition.name == HELD_ELSEWHERE:
        raise UserError(
            f"{place} is of a federation whose clients keep their data; only `fedbraid serve` goes on with it"
        )
    known = {"data": data.names(), "partition": [e.name for e in data.PARTITIONS], "model": models.names()}
    for table, names in known.items():
        name = getattr(config, table).name
        if name not in names and table not in given.brought:
            if table == "model":
                raise UserError(
                    f"{place} has a network of your own, {name!r}, whose code is not recorded; give it again with "
                    f"--model FILE.py:{name}, or {how.format(table=table)}"
                )
            raise UserError(
                f"{place} was given its {table} in Python: {name!r} is none of FedBraid's, and what it holds was not "
                f"recorded; {how.format(table=table)}"
            )


def check_needs(config: Config, chain: Chain) -> None:
    """What a chain needs of the rounds it is put into."""
    if "fixed cohort" in chain.needs and config.sampling.scheme == "bernoulli":
        raise UserError(
            f"{_who(chain, 'fixed cohort')} needs the same number of clients in every round, "
            "but sampling.scheme is 'bernoulli'; set sampling.scheme=fixed"
        )
    if "fixed cohort" in chain.needs and config.sampling.dropout:
        raise UserError(
            f"{_who(chain, 'fixed cohort')} needs every client of a round to come back; set sampling.dropout=0"
        )
    if DRAWN_ALIKE in chain.needs and (config.sampling.scheme == "by_size" or config.sampling.late):
        key = "scheme=fixed" if config.sampling.scheme == "by_size" else "late=0"
        raise UserError(
            f"{_who(chain, DRAWN_ALIKE)} needs every client to be drawn with the same chance in every round; set "
            f"sampling.{key}"
        )
    for strand in chain.using("under"):
        strand.under(optimizer_of(config))
    if config.evaluate.model == "cohort":
        undone = [s for s in chain.using("deploy") if overrides(s, "update")]  # what it hands out is the mean
        others = [s.name for s in (*chain.using("rescale"), *chain.using("deploy")) if s not in undone]
        if others:
            raise UserError(f"{others[0]} hands out what is no mean of a round's models; set evaluate.model=server")


def check_fit(config: Config, chain: Chain, dataset: Dataset, population: int) -> None:
    """What a chain and metrics need of the data, and the rounds of the number of clients."""
    if "labels" in chain.needs and dataset.task != "classification":
        raise UserError(f"{_who(chain, 'labels')} needs class labels, but {dataset.name} is a regression; leave it out")
    for key in ("target", "per_client", "groups") if dataset.task != "classification" else ():
        if getattr(config.evaluate, key):
            raise UserError(f"evaluate.{key} is about accuracy, but {dataset.name} is a regression; leave it out")
    check_metrics(config.evaluate.metrics, dataset.task, dataset.classes, dataset.name)
    if config.sampling.clients > population:
        raise UserError(
            f"sampling.clients is {config.sampling.clients}, but there are {population} clients; "
            f"choose at most {population}"
        )
    early = int((arrivals(config, population) == 0).sum())
    if "fixed cohort" in chain.needs and (config.sampling.clients or population) > early:
        raise UserError(
            f"{_who(chain, 'fixed cohort')} needs the same number of clients in every round, but only {early} of "
            f"{population} are there from the beginning; set sampling.clients to at most {early}, or "
            "sampling.late=0"
        )


def check_memory(config: Config, setup: Setup, other_way: str = "") -> None:
    """That every client's model can be in memory at once, where the round ends with that."""
    w, clients = setup.w, setup.cohort or max(1, int(config.sampling.rate * setup.population))
    needed, free = clients * w.numel() * w.element_size(), free_memory(w.device)
    if needed > free:
        fits = max(1, int(0.5 * free / (w.numel() * w.element_size())))
        raise UserError(
            f"the models of a round's {clients:,} clients take {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are "
            f"free; set sampling.clients to {fits:,} or fewer{other_way}"
        )


def _check_network(model: Model, samples: Samples, dataset: Dataset) -> None:
    """That the network takes the samples and answers as it should, before the first round."""
    x = _first_twice(samples)
    with _taking(samples, dataset):
        refuse_random_outputs(model, x)
        logits = outputs(model.evaluating, partial(model.evaluating, x)).logits
    if not logits.isfinite().all():
        raise UserError(
            f"the network's answers to the first sample of {dataset.name} are not finite; look at its weights, and at "
            "the data set's mean and std"
        )
    if logits.shape != (2, dataset.classes):
        raise UserError(
            f"the network answers two samples with logits of shape {tuple(logits.shape)}; "
            f"{dataset.name} needs (2, {dataset.classes})"
        )


def _first_twice(samples: Samples) -> Tensor:
    return samples.inputs(torch.zeros(2, dtype=torch.int64, device=samples.x.device))


@contextmanager
def _taking(samples: Samples, dataset: Dataset) -> Iterator[None]:
    """While the network is tried on samples: what goes wrong in it is told in a sentence."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        reason = first_line(error)
        if not isinstance(error, RuntimeError | IndexError | TypeError | ValueError):
            reason = f"{type(error).__name__}: {reason}"
        words = "; whole numbers are words: give pixels as uint8, other numbers as float32" if samples.is_text else ""
        raise UserError(f"the network does not take samples of shape {dataset.shape} ({reason}){words}") from error


def _who(chain: Chain, need: str) -> str:
    return next(s.name for s in chain if need in s.needs)


def device_of(name: str) -> torch.device:
    """The torch device that `auto`, `cpu` or `cuda` stands for."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"engine.device must be auto, cpu or cuda, not {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"engine.device must be auto, cpu or cuda, not {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("engine.device is cuda, but torch sees no GPU here; use cpu or auto")
    return device
