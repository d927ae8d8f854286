"""What an option may be, and beside which others it has an effect: said where it is declared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, fields, is_dataclass
from operator import ge, gt, le, lt
from typing import Any, NamedTuple, TypeVar

from fedbraid.core.number_checks import FINITE, is_finite
from fedbraid.errors import UserError

Value = TypeVar("Value")

HOLDS = {"above": gt, "at least": ge, "below": lt, "at most": le}
BOUNDS, BESIDE, UNLESS = "bounds", "beside", "unless"
"""Where a field's metadata have what is said of it."""


def default(
    value: Value,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    beside: str | tuple[str, ...] = (),
    unless: str = "",
) -> Value:
    """A field of a frozen dataclass with this value unless another is given, and what others it may have.

    `beside` are other options without which it has no effect, one of which is enough: "crop" is one that is not 0,
    "shape=step" one with that value. `unless` is one that takes its place where it is not 0: then it may be given,
    since a file's value gives way to what is set over it, but not varied.
    """
    bounds = {"above": above, "at least": least, "below": below, "at most": most}
    said = {
        BOUNDS: {word: bound for word, bound in bounds.items() if bound is not None},
        BESIDE: (beside,) if isinstance(beside, str) else beside,
        UNLESS: unless,
    }
    made: Value = field(default=value, metadata=said)
    return made


def check_ranges(owner: Any, path: str) -> None:
    """Refuse a number that is not finite, or not what was said of it; `path` stands before the option's name."""
    for f in fields(owner):
        value, bounds = getattr(owner, f.name), f.metadata.get(BOUNDS, {})
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not is_finite(number):
                raise UserError(f"{path}{f.name} must be {FINITE}, not {value}")
        if not all(HOLDS[word](value, bound) for word, bound in bounds.items()):
            words = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items())
            raise UserError(f"{path}{f.name} must be {words}, not {value}")


class Conditional(NamedTuple):
    """An option that is given and has an effect only with some values of others."""

    name: str
    given: str  # as it is written, with its value
    others: tuple[str, ...]  # those that it counts beside, by name
    complaint: str  # "" where it has an effect
    gives_way: bool  # what takes its place was set over it, so that it is no mistake by itself


def conditional(owner: Any, path: str) -> Iterator[Conditional]:
    """Each option that is given and counts only with some values of others; `path` stands before its name."""
    for f in fields(owner):
        value, beside, unless = getattr(owner, f.name), f.metadata.get(BESIDE, ()), f.metadata.get(UNLESS, "")
        if value == f.default or not (beside or unless):
            continue
        given, complaint, gives_way = _written(path + f.name, value, f.default), "", False
        if beside and not any(_has(owner, other) for other in beside):
            wanted = " or ".join(f"{path}{other}" for other in beside)
            complaint = f"{given} is for {wanted}; set that too, or leave it out"
        elif unless and _has(owner, unless):
            instead = f"{path}{unless}={getattr(owner, unless)}"
            complaint, gives_way = f"{given} has no effect beside {instead}, which takes its place; leave out one", True
        others = tuple(other.partition("=")[0] for other in beside)
        yield Conditional(f.name, given, others, complaint, gives_way)


def _written(name: str, value: Any, usual: Any) -> str:
    """An option with its value; of a table what is not as usual."""
    if not is_dataclass(value):
        return f"{name}={value}"
    pairs = ((f.name, getattr(value, f.name), getattr(usual, f.name)) for f in fields(value))
    return ", ".join(_written(f"{name}.{key}", one, old) for key, one, old in pairs if one != old)


def _has(owner: Any, other: str) -> bool:
    name, _, value = other.partition("=")
    return str(getattr(owner, name)) == value if value else bool(getattr(owner, name))
