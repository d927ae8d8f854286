"""The Python API: one run, or a comparison."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from numbers import Integral
from operator import add
from os import PathLike
from pathlib import Path
from typing import Any

from fedbraid import models
from fedbraid.config import sweeps
from fedbraid.config.schema import Config, check_settable, flat, from_dict, named, plain, to_dict
from fedbraid.config.sweeps import Values
from fedbraid.core.chain import Chain, no_strand
from fedbraid.core.strand import Strand
from fedbraid.data.dataset import Dataset, Partition
from fedbraid.errors import UserError, first_line
from fedbraid.storage.folders import output_path, run_path
from fedbraid.strands import parser as methods
from fedbraid.strands.parser import Own, own_strands
from fedbraid.training.failures import sentence
from fedbraid.training.results import Comparison, Failure, Run
from fedbraid.training.run_checks import validate_settings
from fedbraid.training.run_directory import RunDirectory
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.run_writer import OnRound
from fedbraid.training.scheduler import Listener, train_runs
from fedbraid.training.user_objects import UserObjects

log = logging.getLogger("fedbraid")

Method = str | Strand | type[Strand] | Chain


def run(
    method: Method | None = None,
    *,
    config: Config | None = None,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    own: Own = (),
    data_dir: str | PathLike[str] | None = None,
    on_round: OnRound | None = None,
    callbacks: Sequence[Any] = (),
    **settings: Any,
) -> Run:
    """Train one federation.

    `method` is written as on the command line ("fedprox+disco"), a strand or a chain. Settings are the configuration's
    keys: `rounds=20, local={"epochs": 2}, model="logistic"`; `data`, `partition` and `model` also take a Dataset, a
    Partition and a torch module, or a class or function that makes one (`model=Net`), whose weights are then drawn from
    the run's seed. `own` are strand classes of yours that `method` names. With `out` the run is recorded there and can
    be resumed. `on_round(line, config)` is called after each round, with its line of the log; where it returns
    `fedbraid.STOP` the run ends there, and can be resumed. `callbacks` are objects that follow the run and can stop it,
    such as `fedbraid.EarlyStopping()`; their hooks are those of `fedbraid.Callback`.

    >>> run("fedavg", rounds=1).summary["rounds"]
    1
    """
    spec = _spec(method, config, out, own, data_dir, settings)
    return train_runs([spec], resume=resume, listener=Listener(on_round, callbacks=callbacks))[0]


def _spec(
    method: Method | None,
    config: Config | None,
    out: str | PathLike[str] | None,
    own: Own,
    data_dir: str | PathLike[str] | None,
    settings: Mapping[str, Any],
    variant: Mapping[str, Any] | None = None,
) -> RunSpec:
    """Return the run that the arguments of `run` ask for, with the values that a `variant` gives to some settings."""
    settings, supplied = dict(settings), dict[str, Any]()
    for key, (kind, name_of) in OBJECTS.items():
        value = settings.get(key)
        if isinstance(value, kind):
            supplied[key] = value
            settings[key] = {"name": name_of(value)}
    for key in ("data", "partition", "model", "optimizer"):
        if isinstance(settings.get(key), str):
            settings[key] = {"name": settings[key]}
    chain = None if method is None or isinstance(method, str) else as_chain(method)
    if method is not None:
        settings["method"] = str(chain) if chain is not None else method
    config = combined(config or Config(), settings)
    objects = UserObjects(
        **supplied, chain=chain, strands=own_strands(own), data_dir=Path(data_dir) if data_dir else None
    )
    config = sweeps.varied(config, variant) if variant is not None else config
    return RunSpec.of(config, objects, RunDirectory(output_path(out)) if out is not None else None)


OBJECTS: dict[str, tuple[Any, Callable[[Any], str]]] = {
    "data": (Dataset, lambda dataset: dataset.name),
    "partition": (Partition, lambda partition: str(partition.recipe.get("name", "given"))),
    "model": (Callable, models.name_of),  # which modules are too
}
"""Settings that may also be the thing itself, and what is then recorded as its name."""


def compare(
    *to_compare: Method,
    seeds: int | Sequence[int] = 1,
    config: Config | None = None,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    own: Own = (),
    data_dir: str | PathLike[str] | None = None,
    on_round: OnRound | None = None,
    callbacks: Sequence[Any] = (),
    together: bool = True,
    vary: Values | None = None,
    **settings: Any,
) -> Comparison:
    """Train every method on the same clients with the same seeds.

    The arguments are those of `run`; with `out` each run is recorded under it and the report is written there.
    `vary={"optimizer.lr": [0.1, 0.03], "local.epochs": [1, 5]}` trains each method with every combination of these
    values. Runs whose methods differ in numbers only, seeds above all, share a stack where there is one, which is
    faster than one run after the other; `together=False` trains each by itself.

    A run that goes wrong is warned about and left out: it is in `failed` of the result, with its reason. What is wrong
    with the methods or settings as such is refused before anything is trained.
    """
    specs = planned(*to_compare, seeds=seeds, config=config, out=out, own=own, data_dir=data_dir, vary=vary, **settings)
    return compared(specs, out=out, resume=resume, on_round=on_round, callbacks=callbacks, together=together)


def planned(
    *to_compare: Method,
    seeds: int | Sequence[int] = 1,
    config: Config | None = None,
    out: str | PathLike[str] | None = None,
    own: Own = (),
    data_dir: str | PathLike[str] | None = None,
    vary: Values | None = None,
    **settings: Any,
) -> list[tuple[str, RunSpec]]:
    """The runs of a comparison and what each is called. Names and settings that do not exist are refused."""
    if not to_compare:
        raise UserError("name at least one method to compare, such as fedavg fedavg+disco")
    if len(to_compare) == 1 and isinstance(to_compare[0], list | tuple):
        to_compare = tuple(to_compare[0])
    base = combined(config or Config(), {"seed": settings.pop("seed")} if "seed" in settings else {})
    numbers = _numbers_of(seeds, base.seed)
    labels = [m if isinstance(m, str) else str(as_chain(m)) for m in to_compare]
    chains = [as_chain(method, own) for method in to_compare]
    common = combined(base, {key: value for key, value in settings.items() if key in ("sampling", "strands")})
    vary = sweeps.listed(vary)
    asked = set(common.strands) | {name for key in vary if (name := sweeps.strand_of(key)) is not None}
    unused = asked - {s.name for c in chains for s in c}
    if unused:
        name = sorted(unused)[0]
        there = methods.instead(name, (s for c in chains for s in c))
        raise UserError(f"hyper-parameters are set for {name!r}, which none of the methods has; {there}")
    base = replace(base, strands={})
    specs: list[tuple[str, RunSpec]] = []
    for label, method, its_chain in zip(labels, to_compare, chains, strict=True):
        mine = {s.name for s in its_chain}
        settings["strands"] = {name: table for name, table in common.strands.items() if name in mine}
        for variant in sweeps.variants(vary, its_chain):
            folder = named(label, variant, between="_")
            for seed in numbers:
                place = run_path(output_path(out), folder, seed) if out is not None else None
                spec = _spec(method, base, place, own, data_dir, settings | {"seed": seed}, variant)
                sweeps.check_varied(variant, spec.chain, spec.objects.settled)
                validate_settings(spec)
                specs.append((named(label, variant), spec))
    _refuse_twice(specs)
    return specs


def _refuse_twice(specs: Sequence[tuple[str, RunSpec]]) -> None:
    """Refuse methods that are the same with their hyper-parameters, whatever they are called.

    Methods that were recorded apart, when that was allowed, can be resumed.
    """
    recorded = {label: r.directory.path.parent for label, r in specs if r.directory and r.directory.started}
    labels: dict[tuple[str, int, str], list[str]] = {}
    for label, spec in specs:
        values = flat(to_dict(spec.config)).items()
        varied = [pair for pair in values if f"{pair[0]}.".startswith(tuple(f"{key}." for key in spec.config.varied))]
        method = str(spec.chain), spec.config.seed, repr(varied)
        others = labels.setdefault(method, [])
        for other in others:
            if len({recorded.get(label), recorded.get(other)} - {None}) < 2:
                same = f"{label} is listed twice" if label == other else f"{other} and {label} are both {method[0]}"
                raise UserError(f"{same}; a comparison needs different methods")
        others.append(label)


def _numbers_of(seeds: int | Sequence[int], first: int) -> list[int]:
    """Each seed of a comparison, which has `seeds` of them or lists them."""
    listed = plain(range(first, first + int(seeds)) if isinstance(seeds, Integral) else seeds)
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        raise UserError(f"seeds is a number of seeds or a list of them, not {seeds!r}")
    if not listed:
        raise UserError("seeds must be 1 or more")
    twice = next((seed for k, seed in enumerate(listed) if seed in listed[:k]), None)
    if twice is not None:
        raise UserError(f"seed {twice} is listed twice; the same run would count twice, so give different seeds")
    return list(listed)


def compared(
    specs: Sequence[tuple[str, RunSpec]],
    *,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    callbacks: Sequence[Any] = (),
    together: bool = True,
) -> Comparison:
    """Carry out what was planned; the report goes into `out`."""
    failures: list[Failure] = []

    def failed(place: int, error: Exception) -> None:
        label, spec = specs[place]
        message = sentence(error)
        reason = message or f"{type(error).__name__}: {first_line(error)}"
        where = None if message else error  # of what may be a defect the traceback says more
        log.warning("%s seed %d failed: %s", label, spec.config.seed, reason, exc_info=where)
        failures.append(Failure(label, spec.config.seed, reason, error))

    listener = Listener(on_round, on_failed=failed, callbacks=callbacks)
    done = train_runs([spec for _, spec in specs], resume=resume, together=together, listener=listener)
    if not done:
        raise UserError(failures[0].reason) from failures[0].error
    places = sorted(done)
    comparison = Comparison([done[place] for place in places], [specs[place][0] for place in places], failures)
    if out is not None:
        comparison.report(out)
    return comparison


def chain(*parts: Method, own: Own = ()) -> Chain:
    """A method put together from parts: `chain("fedprox", MyStrand())`."""
    return reduce(add, (as_chain(part, own) for part in parts), Chain())


def as_chain(method: Method, own: Own = ()) -> Chain:
    if isinstance(method, str):
        return methods.parse(method, own=own_strands(own))
    if isinstance(method, type) and issubclass(method, Strand):
        method = method()
    if isinstance(method, list | tuple):
        raise no_strand(method, method)
    return method if isinstance(method, Chain) else Chain((method,))


def combined(config: Config, settings: Mapping[str, Any]) -> Config:
    """`config` with settings laid over it, tables key by key."""
    if not settings:
        return config
    values = to_dict(config)
    for key, value in settings.items():
        check_settable(key)
        old = values.get(key)
        if (
            isinstance(value, Mapping)
            and isinstance(old, dict)
            and value.get("name", old.get("name")) == old.get("name")
        ):
            value = {**old, **value}  # another name would have other options
        values[key] = value
    return from_dict(values)
