"""The Python API: one run, or a comparison."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from functools import reduce
from operator import add
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedbraid import data, methods, models, privacy
from fedbraid.config import Config, Named, from_dict, to_dict, to_toml
from fedbraid.core.chain import Chain
from fedbraid.core.strand import Strand
from fedbraid.data.dataset import Dataset, Partition
from fedbraid.errors import UserError
from fedbraid.experiment import Experiment, Given, build, check_needs
from fedbraid.registry import Entry
from fedbraid.report.html import write_comparison
from fedbraid.report.records import RunRecord
from fedbraid.report.summarise import by_method, summarise
from fedbraid.runs import RunDirectory
from fedbraid.version import __version__

Method = str | Strand | type[Strand] | Chain
OnRound = Callable[[dict[str, Any], Config], None]


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    config: Config
    rounds: list[dict[str, Any]]
    summary: dict[str, Any]
    label_counts: list[list[int]] | None
    model: nn.Module
    directory: Path | None = None

    @property
    def accuracy(self) -> float | None:
        """The last accuracy measured."""
        accuracy: float | None = self.summary["last"] if self.summary["metric"] == "accuracy" else None
        return accuracy

    def record(self, label: str | None = None) -> RunRecord:
        return RunRecord(
            label or self.config.method, self.config.seed, tuple(self.rounds), to_dict(self.config), self.label_counts
        )

    def report(self, directory: str | PathLike[str]) -> list[Path]:
        """Write a report with pictures into `directory`; the paths of what was written."""
        return _report(Path(directory), [self.record()], self.config)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several methods on the same clients with the same seeds."""

    runs: list[Run] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    @property
    def records(self) -> list[RunRecord]:
        return [run.record(label) for run, label in zip(self.runs, self.labels, strict=True)]

    @property
    def target(self) -> float | None:
        return self.runs[0].config.evaluate.target or None

    @property
    def summary(self) -> dict[str, dict[str, Any]]:
        """Each method's numbers over the seeds: mean and standard deviation."""
        return by_method(self.records, self.target)

    def report(self, directory: str | PathLike[str]) -> list[Path]:
        """Write the table, the pictures and report.html; the paths of what was written."""
        return _report(Path(directory), self.records, self.runs[0].config)


def run(
    method: Method | None = None,
    *,
    config: Config | None = None,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    own: Sequence[type[Strand]] = (),
    data_dir: str | PathLike[str] | None = None,
    on_round: OnRound | None = None,
    **settings: Any,
) -> Run:
    """Train one federation.

    `method` is written as on the command line ("fedprox+disco"), a strand or a chain. Settings are the configuration's
    keys: `rounds=20, local={"epochs": 2}, model="logistic"`; `data`, `partition` and `model` also take a Dataset, a
    Partition and a torch module. `own` are strand classes of yours that `method` names. With `out` the run is recorded
    there and can be resumed.

    >>> run("fedavg", rounds=1).summary["rounds"]
    1
    """
    brought: dict[str, Any] = {}
    for key, (kind, name_of) in OBJECTS.items():
        value = settings.get(key)
        if isinstance(value, kind):
            brought[key] = value
            settings[key] = {"name": name_of(value)}
    for key in ("data", "partition", "model", "optimizer"):
        if isinstance(settings.get(key), str):
            settings[key] = {"name": settings[key]}
    chain = None if method is None or isinstance(method, str) else as_chain(method)
    if method is not None:
        settings["method"] = str(chain) if chain is not None else method
    config = combined(config or Config(), settings)
    given = Given(**brought, chain=chain, strands=tuple(own), data_dir=Path(data_dir) if data_dir else None)
    return execute(config, given, RunDirectory(Path(out)) if out is not None else None, resume, on_round)


OBJECTS: dict[str, tuple[type, Callable[[Any], str]]] = {
    "data": (Dataset, lambda dataset: dataset.name),
    "partition": (Partition, lambda partition: str(partition.recipe.get("name", "given"))),
    "model": (nn.Module, lambda module: type(module).__name__),
}
"""Settings that may also be the thing itself, and what is then recorded as its name."""


def compare(
    *to_compare: Method,
    seeds: int | Sequence[int] = 1,
    config: Config | None = None,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    own: Sequence[type[Strand]] = (),
    on_round: OnRound | None = None,
    **settings: Any,
) -> Comparison:
    """Train every method on the same clients with the same seeds.

    The arguments are those of `run`; with `out` each run is recorded under it and the report is written there.
    """
    if not to_compare:
        raise UserError("name at least one method to compare, such as fedavg fedavg+disco")
    if len(to_compare) == 1 and isinstance(to_compare[0], list | tuple):
        to_compare = tuple(to_compare[0])
    base = combined(config or Config(), {"seed": settings.pop("seed")} if "seed" in settings else {})
    numbers = range(base.seed, base.seed + seeds) if isinstance(seeds, int) else seeds
    if not len(numbers):
        raise UserError("seeds must be 1 or more")
    labels = [m if isinstance(m, str) else str(as_chain(m)) for m in to_compare]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice:
        raise UserError(f"{twice} is listed twice; a comparison needs different methods")
    comparison = Comparison()
    chains = [as_chain(method, own) for method in to_compare]
    common = combined(base, {key: value for key, value in settings.items() if key in ("sampling", "strands")})
    unused = set(common.strands) - {s.name for c in chains for s in c}
    if unused:
        raise UserError(f"hyper-parameters are set for {sorted(unused)[0]!r}, which none of the methods has")
    base = replace(base, strands={})
    for one_chain in chains:
        check_needs(common, one_chain)  # every method is checked before the first is trained
    for label, method, its_chain in zip(labels, to_compare, chains, strict=True):
        mine = {s.name for s in its_chain}
        settings["strands"] = {name: table for name, table in common.strands.items() if name in mine}
        for seed in numbers:
            place = Path(out) / directory_name(label) / f"seed-{seed}" if out is not None else None
            one = run(method, config=base, out=place, resume=resume, own=own, on_round=on_round, **settings, seed=seed)
            comparison.runs.append(one)
            comparison.labels.append(label)
    if out is not None:
        comparison.report(out)
    return comparison


def chain(*parts: Method, own: Sequence[type[Strand]] = ()) -> Chain:
    """A method put together from parts: `chain("fedprox", MyStrand())`."""
    return reduce(add, (as_chain(part, own) for part in parts), Chain())


def as_chain(method: Method, own: Sequence[type[Strand]] = ()) -> Chain:
    if isinstance(method, str):
        return methods.parse(method, own=own)
    if isinstance(method, type) and issubclass(method, Strand):
        method = method()
    return method if isinstance(method, Chain) else Chain((method,))


def combined(config: Config, settings: Mapping[str, Any]) -> Config:
    """`config` with settings laid over it, tables key by key."""
    if not settings:
        return config
    values = to_dict(config)
    for key, value in settings.items():
        old = values.get(key)
        if (
            isinstance(value, Mapping)
            and isinstance(old, dict)
            and value.get("name", old.get("name")) == old.get("name")
        ):
            value = {**old, **value}  # another name would have other options
        values[key] = value
    return from_dict(values)


def execute(
    config: Config, given: Given, directory: RunDirectory | None, resume: bool, on_round: OnRound | None = None
) -> Run:
    """Run what is left to run."""
    if directory and directory.started and resume and config.engine.kind == "auto":  # the engine it was begun with
        config = replace(config, engine=replace(config.engine, kind=directory.config().engine.kind))
    experiment = build(config, given, directory.states if directory else None)  # mistakes come before any file
    config = resolved(experiment, given)
    with directory.locked() if directory else nullcontext():
        if directory and directory.started:
            if not resume:
                raise UserError(
                    f"{directory.path} already holds a run; add --resume to continue it, or choose another --out"
                )
            directory.check_same(config)
            directory.load(experiment)
        elif directory:
            directory.begin(config)
        rounds = directory.rounds() if directory else []
        was_finished = experiment.finished
        while not experiment.finished:
            record = experiment.advance()
            rounds.append(record)
            if directory:
                directory.append(record)
                if experiment.server.round % config.save.every == 0 or experiment.finished:
                    directory.save(experiment)
            if on_round:
                on_round(record, config)
        summary = summarise(rounds, config.evaluate.target or None)
        summary |= privacy.report(experiment.chain, config.rounds)
        if directory and not (was_finished and (directory.path / "summary.json").exists()):
            directory.finish(experiment, summary)
        counts = None
        if experiment.dataset.task == "classification":
            counts = experiment.clients.label_counts.long().tolist()
        return Run(config, rounds, summary, counts, experiment.module(), directory.path if directory else None)


def resolved(experiment: Experiment, given: Given) -> Config:
    """The configuration with every default written out, so that it says how the run was made."""
    config, chain = experiment.config, experiment.chain
    data_options = {} if given.data else _options(data.describe(), config.data)
    split_options = {} if given.partition else _options(data.PARTITIONS, config.partition)
    model_options = {} if given.model else _options(models.describe(), config.model)
    return replace(
        config,
        strands={s.name: {f.name: getattr(s, f.name) for f in fields(s)} for s in chain},  # type: ignore[arg-type]
        data=replace(config.data, options=data_options),
        partition=replace(config.partition, options=split_options, clients=len(experiment.partition)),
        model=replace(config.model, options=model_options),
        optimizer=replace(config.optimizer, options=asdict(experiment.optimizer)),  # type: ignore[call-overload]
        engine=replace(config.engine, kind=experiment.engine.kind),
    )


def _options(entries: Iterable[Entry[Any]], named: Named) -> dict[str, Any]:
    """The options of what is named, defaults included; None cannot be written and is the default anyway."""
    entry = next(e for e in entries if e.name == named.name)
    return {key: value for key, value in (entry.options | named.options).items() if value is not None}


def directory_name(label: str) -> str:
    """A method as a file name; a long one is cut and told apart by a few letters of its hash."""
    name = "".join(c if c.isalnum() or c in "+-._=" else "_" for c in label.replace(" ", ""))
    return name if len(name) <= 80 else f"{name[:70]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def environment() -> dict[str, str]:
    """Where results come from."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "fedbraid": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {platform.processor() or 'unknown processor'}",
        "gpu": gpu,
    }


def _report(directory: Path, records: list[RunRecord], config: Config) -> list[Path]:
    shared = to_toml(replace(config, seed=0))
    return write_comparison(
        directory, records, config.evaluate.target or None, environment=environment(), command=shared
    )


def numbered(parent: Path, name: str) -> Path:
    """The first of name-1, name-2, … that is not taken."""
    return next(p for p in _numbers(parent, name) if not p.exists())


def _numbers(parent: Path, name: str) -> Iterator[Path]:
    k = 1
    while True:
        yield parent / f"{name}-{k}"
        k += 1
