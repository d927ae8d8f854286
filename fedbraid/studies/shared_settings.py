"""The settings of a table's cells: what all of them share, once, and what rows, columns and cells have of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w

from fedbraid.config.schema import flat, put, to_dict
from fedbraid.studies.naming import AT, Place
from fedbraid.studies.recipe import Settings
from fedbraid.studies.table_results import Results

NOT_TOLD = "seed", "engine", "save"
"""Settings that say nothing of what was run; seeds and machines have places of their own in a report."""

Flat = dict[str, Any]


@dataclass(frozen=True)
class Sharing:
    """Settings by dotted keys."""

    everywhere: Flat
    rows: Mapping[str, Flat]
    columns: Mapping[str, Flat]
    cells: Mapping[Place, Flat]  # where neither the row nor the column alone decides


def sharing(results: Results) -> Sharing:
    """Each setting at the one place that decides it."""
    configs = {place: settings_of_run(to_dict(cell.settings)) for place, cell in results.cells.items() if cell.settings}
    return shared(configs)


def settings_of_run(values: Settings) -> Flat:
    return flat({key: value for key, value in values.items() if key not in NOT_TOLD})


def shared(configs: Mapping[Place, Flat]) -> Sharing:
    everywhere = _agreed(configs.values())
    rest = {place: _only(config, config.keys() - everywhere) for place, config in configs.items()}
    keys = {key for config in rest.values() for key in config}
    by_row = {key for key in keys if _decides(0, key, rest)}
    by_column = {key for key in keys - by_row if _decides(1, key, rest)}
    cells = {place: _only(config, keys - by_row - by_column) for place, config in rest.items()}
    return Sharing(
        everywhere,
        {row: _only(config, by_row) for (row, _), config in rest.items()},
        {column: _only(config, by_column) for (_, column), config in rest.items()},
        {place: mine for place, mine in cells.items() if mine},
    )


def to_toml(found: Sharing) -> str:
    """The shared part as a run's configuration; the others as what they lay over it."""
    parts = [tomli_w.dumps(nested(found.everywhere)).strip()]
    parts += [_lines(f"row {row}", mine) for row, mine in found.rows.items() if mine]
    parts += [_lines(f"column {column}", mine) for column, mine in found.columns.items() if mine]
    parts += [_lines(AT.join(place), mine) for place, mine in found.cells.items()]
    return "\n\n".join(filter(None, parts)) + "\n"


def nested(settings: Flat) -> dict[str, Any]:
    """Dotted keys as tables."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        put(values, key, value)
    return values


def _decides(side: int, key: str, configs: Mapping[Place, Flat]) -> bool:
    """Tell if the row (side 0) or the column (side 1) alone decides the key's value, or that it has none."""
    found: dict[str, Any] = {}
    return all(found.setdefault(place[side], config.get(key)) == config.get(key) for place, config in configs.items())


def _agreed(configs: Iterable[Flat]) -> Flat:
    """Return the settings that all of them have, with the same value."""
    first, *others = list(configs) or [{}]
    return {key: value for key, value in first.items() if all(key in o and o[key] == value for o in others)}


def _only(config: Flat, keys: Iterable[str]) -> Flat:
    """These of its settings, in its own order."""
    wanted = set(keys)
    return {key: value for key, value in config.items() if key in wanted}


def _lines(title: str, settings: Flat) -> str:
    return "\n".join([f"# {title}", *[f"{key} = {_value(value)}" for key, value in settings.items()]])


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()
