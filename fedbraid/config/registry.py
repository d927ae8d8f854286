"""Things a user asks for by name: what they are, which options they take, and which mistakes are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from numbers import Integral, Real
from sys import float_info
from typing import Any, Generic, TypeVar

from fedbraid.errors import UserError, unknown

Made = TypeVar("Made")

GIVEN = {"data_dir", "tokens"}
"""Parameters that a maker receives from what surrounds it; no options of a user's."""


@dataclass(frozen=True)
class Entry(Generic[Made]):
    """A maker with its name and one line about it. Its options are the parameters of `make` that have defaults."""

    name: str
    summary: str
    make: Callable[..., Made]

    @cached_property
    def options(self) -> dict[str, Any]:
        """Every option with its default."""
        parameters = signature(self.make).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not Parameter.empty and p.name not in GIVEN}


def find(
    kind: str,
    name: str,
    entries: Iterable[Entry[Made]],
    options: Mapping[str, Any],
    also: Iterable[str] = (),
    otherwise: str = "",
) -> Entry[Made]:
    """The entry called `name`, once it is known to take all of `options`; every entry takes those in `also`.

    Where there is none of that name, `otherwise` says what else there may be.
    """
    named = {entry.name: entry for entry in entries}
    if name not in named:
        raise unknown(kind, name, named, otherwise)
    known = {*named[name].options, *also}
    for option in options:
        if not known:
            raise UserError(f"{kind} {name!r} takes no options; leave {option!r} out")
        if option not in known:
            raise unknown(f"option of {kind} {name!r}", option, known)
    return named[name]


def whole(name: str, value: object, least: int = 1) -> int:
    """`value` as an int, or a sentence about what `name` must be."""
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least:
        return int(value)
    raise UserError(f"{name} must be a whole number of at least {least}, not {value!r}")


def positive(name: str, value: object) -> float:
    """`value` as a float above zero."""
    number = _finite(value)
    if number is not None and number > 0:
        return number
    raise UserError(f"{name} must be a finite number above 0, such as 0.5, not {value!r}")


def not_negative(name: str, value: object) -> float:
    """`value` as a float of zero or more."""
    number = _finite(value)
    if number is not None and number >= 0:
        return number
    raise UserError(f"{name} must be a finite number of at least 0, such as 0.5, not {value!r}")


def _finite(value: Any) -> float | None:
    # Compared before it is converted: an int may be too large for a float.
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) <= float_info.max else None
