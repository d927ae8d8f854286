"""The settings of runs: what they share, where they differ from one another and from the defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from fedbraid import data, models
from fedbraid.config.registry import Entry
from fedbraid.config.schema import Config, to_dict
from fedbraid.core.optimizer import OPTIMIZERS
from fedbraid.report.run_groups import RunRecord, by_label
from fedbraid.report.words import NOTHING
from fedbraid.strands import STRANDS

# Methods that differ in one of these solved different tasks.
TASK = ("data", "partition", "model", "rounds")
HELD_OUT = "evaluate.validation"  # which is not trained on


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """`{"data": {"name": "digits"}}` → `{"data.name": "digits"}`, values as text."""
    flat: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def setting_rows(records: Sequence[RunRecord]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Every setting with its value, and with whose value it is where runs differ.

    Returns the settings that runs were given, and those that are the defaults in every run.
    """
    defaults = {key: value for record in records for key, value in default_settings(record.settings).items()}
    chosen: list[tuple[str, str]] = []
    left: list[tuple[str, str]] = []
    for key, values in _values_by_method(records).items():
        is_default = all({*found} <= {defaults.get(key), NOTHING} for found in values.values())
        (left if is_default else chosen).append((key, _described(values)))
    return chosen, left


def default_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """The defaults of all settings as text; of options, those of the data, network, strands … that `settings` name."""
    values = to_dict(Config())
    named: dict[str, Sequence[Entry[Any]]] = {
        "data": data.describe(),
        "partition": data.PARTITIONS,
        "model": models.describe(),
    }
    for table, entries in named.items():
        name = settings.get(table, {}).get("name")
        values[table] |= next((dict(entry.options) for entry in entries if entry.name == name), {})
    for table, key in (("partition", "clients"), ("engine", "kind")):  # whose defaults follow from the rest
        values[table][key] = settings.get(table, {}).get(key, values[table][key])
    local = OPTIMIZERS.get(settings.get("optimizer", {}).get("name", ""))
    values["optimizer"] |= asdict(local()) if local else {}
    values["strands"] = {
        strand.name: {field.name: getattr(strand, field.name, None) for field in fields(strand)}  # type: ignore[arg-type]
        for strand in STRANDS
    }
    return flattened(values)


def task_in_words(records: Sequence[RunRecord]) -> str:
    """Data, split, network and rounds, such as `digits, dirichlet (beta=0.3) among 10 clients, mlp, 30 rounds`."""
    found = [record.settings for record in records]
    parts = {key: _named_in(found, key) for key in ("data", "partition", "model")}
    clients = {settings.get("partition", {}).get("clients") for settings in found} - {None}
    if parts["partition"] and len(clients) == 1:
        parts["partition"] += f" among {next(iter(clients))} clients"
    rounds = {settings.get("rounds") for settings in found} - {None}
    seeds = sorted({record.seed for record in records})
    words = [part for part in parts.values() if part]
    words += [f"{next(iter(rounds))} rounds"] if len(rounds) == 1 else []
    words.append(f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds")
    return ", ".join(words)


def _named_in(found: Sequence[Mapping[str, Any]], table: str) -> str:
    """Return the names in a table of the settings, with the options that are not the defaults."""
    described: dict[str, None] = {}
    for settings in found:
        mine, defaults = flattened(settings.get(table, {})), default_settings(settings)
        if name := mine.pop("name", ""):
            options = [f"{key}={value}" for key, value in mine.items() if defaults.get(f"{table}.{key}") != value]
            described[name + (f" ({', '.join(options)})" if options else "")] = None
    return " or ".join(described)


def unshared_task(records: Sequence[RunRecord]) -> list[str]:
    """The settings of the task in which methods differ. Seeds are left out: they have a sentence of their own."""
    return [
        key
        for key, values in _values_by_method(records).items()
        if _belongs_to_task(key) and len({frozenset(found) for found in values.values()}) > 1
    ]


def _belongs_to_task(key: str) -> bool:
    parts = key.split(".")
    return key == HELD_OUT or (parts[0] in TASK and parts[-1] != "seed")


def _values_by_method(records: Sequence[RunRecord]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Setting → method → its distinct values over seeds, in the order met."""
    flat = {label: [flattened(run.settings) for run in runs] for label, runs in by_label(records).items()}
    keys = dict.fromkeys(key for runs in flat.values() for run in runs for key in run)
    return {
        key: {label: tuple(dict.fromkeys(run.get(key, NOTHING) for run in runs)) for label, runs in flat.items()}
        for key in keys
    }


def _described(values: Mapping[str, tuple[str, ...]]) -> str:
    shared = set(values.values())
    if len(shared) == 1:
        return ", ".join(shared.pop())
    known = {label: found for label, found in values.items() if found != (NOTHING,)}
    # The setting that holds the method itself would otherwise say everything twice.
    return "; ".join(label if found == (label,) else f"{label}: {', '.join(found)}" for label, found in known.items())
