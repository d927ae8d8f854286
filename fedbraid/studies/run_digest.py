"""The digest of a run's configuration, so that the same run is made once, whoever asks for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

from fedbraid import data, models
from fedbraid.config.inert import refuse_inert
from fedbraid.config.registry import Entry
from fedbraid.config.schema import Config, Named, from_dict, optimizer_of, to_dict
from fedbraid.core.strand import Strand
from fedbraid.errors import UserError
from fedbraid.strands import parser as methods
from fedbraid.studies.recipe import Settings
from fedbraid.training.run_checks import validate_rounds
from fedbraid.training.simulation import CLIENTS, KNOW_THEIR_CLIENTS

HOW = "engine", "save"
"""Keys that say how a run is made, and nothing of what it is."""
NO_PART = "seed", "varied", *HOW, "method", "strands"
"""Keys that say nothing of what a run is; method and strands count as the chain that they stand for."""


def config_of(settings: Settings, own: Sequence[type[Strand]] = ()) -> Config:
    """The configuration that a cell's settings stand for, with every default written out. Nothing is loaded.

    Hyper-parameters may be set for strands that only other methods of the table have, or whose work another strand does
    in this one: they are left out. `own` are strands beyond FedBraid's.
    """
    for key, instead in NOT_HERE.items():
        table, _, last = key.rpartition(".")
        if last in (settings.get(table, {}) if table else settings):
            raise UserError(f"{key} has no place here: {instead}")
    values = dict(settings)
    if isinstance(values.get("strands"), Mapping):
        tables = {name: table for name, table in values["strands"].items() if isinstance(table, Mapping)}
        mine = methods.strand_names(values.get("method", Config.method), tables, own)
        values["strands"] = {name: table for name, table in values["strands"].items() if name in mine}
    return written_out(from_dict(values), own)


NOT_HERE = {
    "varied": "rows and columns have names",
    "seed": "the recipe says how many seeds there are, and --seeds another number",
    "evaluate.target": "the metric has it, such as rounds_to(target=0.55)",
}
"""Settings of a run that a study sets by other means."""


def written_out(config: Config, own: Sequence[type[Strand]] = ()) -> Config:
    """The configuration with every default in it. Names, options and hyper-parameters that do not exist are refused."""
    chain = methods.parse(config.method, config.strands, own)
    validate_rounds(config, chain)
    refuse_inert([(config, chain)])
    part = config.partition
    return replace(
        config,
        strands={s.name: {f.name: getattr(s, f.name) for f in fields(s)} for s in chain},  # type: ignore[arg-type]
        data=_with_defaults(data.find_dataset(config.data.name, config.data.options), config.data, data.SHAPING),
        partition=replace(
            _with_defaults(data.find_partition(part.name, part.options), part),
            clients=part.clients or (0 if part.name in KNOW_THEIR_CLIENTS else CLIENTS),
        ),
        model=_with_defaults(models.find_network(config.model.name, config.model.options), config.model),
        optimizer=replace(config.optimizer, options=asdict(optimizer_of(config))),  # type: ignore[call-overload]
    )


USUAL = to_dict(Config())
LATER: dict[str, dict[str, Any]] = {
    "data": {"min_train": None, "draws": None},
    "partition": {"long_tail": None, "draws": None, "draws_seed": None},
    "model": {"sigmoid": None, "head_bias": None},
    "optimizer": {},
    "strands": {"clipped": False, "estimate": "plain"},
}
"""Options and hyper-parameters that came after runs had been recorded. Where one has this value, which is its default,
the run is the one that it was without."""


def digest(config: Config) -> str:
    """Sixteen letters that tell a run from another, whatever its seed and its engine.

    The configuration must be written out: its strands are then the whole chain, in its order, and nothing is looked up,
    so that a record with strands of one's own is known without them. What a chain, a data set, a partition, a model and
    an optimizer are made with is part of it, defaults or not; of the other settings only what differs from the default,
    so that a setting of a later version does not make other runs of those that were finished before. An option of a
    later version is in LATER for the same reason.
    """
    mine, usual = to_dict(config), USUAL
    named = {key: _without(LATER[key], mine[key]) for key in ("data", "partition", "model", "optimizer")}
    rest = _differing({key: value for key, value in mine.items() if key not in {*NO_PART, *named}}, usual)
    chain = [[name, _without(LATER["strands"], values)] for name, values in config.strands.items()]
    text = json.dumps(_plain(named | rest | {"chain": chain}), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


Choice = TypeVar("Choice", bound=Named)


def _with_defaults(entry: Entry[Any], named: Choice, also: Mapping[str, Any] | None = None) -> Choice:
    """Return the named choice with its options' defaults; None cannot be written and is the default anyway."""
    options = {**(also or {}), **entry.options, **named.options}
    return replace(named, options={key: value for key, value in options.items() if value is not None})


def _without(some: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not among `some` with the same value."""
    return {key: value for key, value in options.items() if key not in some or value != some[key]}


def _differing(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not the usual ones, tables by their keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        old = usual.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            value, old = _differing(value, old), {}
        if value != old:
            found[key] = value
    return found


def _plain(value: Any) -> Any:
    """Values as JSON has them; 1.0 is 1, however it was written."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
