"""Dataclasses from the tables of a TOML file, whose keys and types are checked. Mistakes are named by their key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedbraid.errors import UserError, unknown

MOST = 1e300
"""Numbers that are further from 0 are none that a paper has; sums of others stay finite."""
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def make_typed(kind: Any, values: Mapping[str, Any], where: str = "", hidden: str = "") -> Any:
    """Return the dataclass `kind` made from a table.

    Args:
        where: put before a key when it is named, such as `rows[2].`.
        hidden: a field that is not the file's to set, and so is not suggested.

    Raises:
        UserError: a key is unknown or missing, or its value has another type than the field.
    """
    hints, known = get_type_hints(kind), [f.name for f in fields(kind)]
    for key in values:
        if key not in known:
            raise unknown("key", where + key, [where + name for name in known if name != hidden])
    for f in fields(kind):
        if f.name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise UserError(f"{where}{f.name} is missing")
    return kind(**{key: _typed(hints[key], value, where + key) for key, value in values.items()})


def _typed(hint: Any, value: Any, where: str) -> Any:
    """Return a value as the type of its field; lists become tuples."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is UnionType:  # a value, or None where the key is left out
        return _typed(args[0], value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise UserError(f"{where} must be a list, not {value!r}")
        return tuple(_typed(args[0], part, f"{where}[{k}]") for k, part in enumerate(value))
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise UserError(f"{where} must be a table, not {value!r}")
        return make_typed(hint, value, f"{where}.")
    if origin is Mapping:
        table = _table(value, where)
        return table if args[1] is Any else {key: _numbers(part, f"{where}.{key}") for key, part in table.items()}
    if origin is Literal:
        if value not in args:
            raise UserError(f"{where} must be one of {', '.join(map(repr, args))}, not {value!r}")
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value, where)
    if type(value) is not hint:
        raise UserError(f"{where} must be {WORDS[hint]}, not {value!r}")
    return value


def _finite(value: int | float, where: str) -> float:
    if abs(value) > MOST or value != value:
        raise UserError(f"{where} must be a finite number, not {value}")
    return float(value)


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be a table, not {value!r}")
    return value


def _numbers(value: Any, where: str) -> dict[str, tuple[float, ...]]:
    """Return a row of the paper's numbers: [mean], [mean, spread] or just the mean."""
    read: dict[str, tuple[float, ...]] = {}
    for column, given in _table(value, where).items():
        several = given if isinstance(given, list) else [given]
        fit = all(isinstance(one, int | float) and not isinstance(one, bool) for one in several)
        if not fit or len(several) not in (1, 2):
            raise UserError(f"{where}.{column} must be [mean] or [mean, spread], not {given!r}")
        read[column] = tuple(_finite(one, f"{where}.{column}") for one in several)
        if any(spread < 0 for spread in read[column][1:]):
            raise UserError(f"{where}.{column} must have a spread of 0 or more, not {given!r}")
    return read
