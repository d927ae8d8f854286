"""What the runs were told: what they share, where they differ, and whether they can be compared at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedbraid.report.run_groups import RunRecord, by_label
from fedbraid.report.words import NOTHING

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


def setting_rows(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Every setting with its value; where runs differ, with all its values and whose they are."""
    return [(key, _described(values)) for key, values in _values_by_method(records).items()]


def unshared_task(records: Sequence[RunRecord]) -> list[str]:
    """The settings of the task in which methods differ. Seeds are left out: they are told apart elsewhere."""
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
    # The setting that holds the method itself would otherwise say everything twice.
    return "; ".join(label if found == (label,) else f"{label}: {', '.join(found)}" for label, found in values.items())
