"""Values of the types that are declared for them: of settings, options and hyper-parameters alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from inspect import isclass
from numbers import Integral
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import cattrs
import numpy as np
from cattrs.gen import make_dict_structure_fn

from fedbraid.core.number_checks import FINITE, is_finite
from fedbraid.errors import UserError, unknown

WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "None",
    tuple[str, ...]: 'a list of names such as ["name"]',
    tuple[int, ...]: "a list of whole numbers such as [50, 75]",
    tuple[float, ...]: "a list of numbers such as [0.5, 0.5]",
}
ELSEWHERE = {
    "lr": "optimizer.lr",
    "learning_rate": "optimizer.lr",
    "momentum": "optimizer.momentum",
    "weight_decay": "optimizer.weight_decay",
    "epochs": "local.epochs",
    "local_epochs": "local.epochs",
    "batch": "local.batch",
    "batch_size": "local.batch",
    "steps": "local.steps",
    "alpha": "partition.beta",
    "beta": "partition.beta",
    "clients": "partition.clients",
    "num_clients": "partition.clients",
    "fraction": "sampling.rate",
    "num_rounds": "rounds",
    "dataset": "data.name",
    "device": "engine.device",
    "target": "evaluate.target",
}
"""Settings that are often looked for without their table, or by another library's name."""

NOT_SET = {"options", "varied"}
"""Fields of the configuration that are no settings: what a table has beside its own, and what a comparison varies."""

Kind = TypeVar("Kind")


def structured(value: Any, kind: type[Kind], path: str = "") -> Kind:
    """A value as one of `kind`: a frozen dataclass from a table, a tuple from a list, a float from a whole number.

    The first mistake is told in a sentence; `path` is what the value is called, or stands before a table's keys.
    """
    try:
        return _CONVERTER.structure(value, kind)
    except (cattrs.BaseValidationError, TypeError, ValueError) as error:
        raise UserError(_sentence(error, path)) from None


def plain(value: Any) -> Any:
    """A value without numpy's kinds of numbers and lists, at any depth."""
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(part) for part in value)
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def is_plain(kind: Any) -> bool:
    """Whether values of a kind are numbers, words, choices, or lists of them."""
    if kind in WORDS or _is_choice(kind):
        return True
    return _is_union(kind) and all(map(is_plain, get_args(kind)))


def shown(value: Any) -> str:
    """A value in one line, however long it is."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_choice(kind: Any) -> bool:
    return get_origin(kind) is Literal


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple and get_args(kind)[1:] == (...,)


def _wanted(kind: Any) -> str:
    if _is_choice(kind):
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    return WORDS.get(kind) or f"of type {getattr(kind, '__name__', kind)}"


def _wrong(value: Any, kind: Any) -> TypeError:
    return TypeError(f"must be {_wanted(kind)}, not {shown(value)}")


def _exactly(value: Any, kind: type) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        if not is_finite(value):
            raise TypeError(f"must be {FINITE}, not {shown(value)}")
        return float(value)
    if kind is int and isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if abs(number) >= 2**63:
            raise TypeError(f"must be {_wanted(kind)} below 2**63, not {shown(number)}")
        return number
    if type(value) is not kind:
        raise _wrong(value, kind)
    return value


def _one_of(value: Any, kind: Any) -> Any:
    for choice in get_args(kind):
        if value == choice and type(value) is type(choice):
            return choice
    raise _wrong(value, kind)


def _each_of(value: Any, kind: Any) -> tuple[Any, ...]:
    """A list whose members are all of one kind."""
    try:
        if isinstance(value, list | tuple):
            return tuple(_CONVERTER.structure(part, get_args(kind)[0]) for part in value)
    except TypeError:
        pass
    if kind == tuple[str, ...] and isinstance(value, str) and value:
        raise TypeError(f'must be a list of names such as ["{value}"], not {shown(value)}')
    raise _wrong(value, kind)


def _any_of(value: Any, kind: Any) -> Any:
    """The first of several kinds that the value is of."""
    for one in get_args(kind):
        try:
            return _CONVERTER.structure(value, one)
        except (cattrs.BaseValidationError, TypeError, ValueError):
            continue
    raise TypeError(f"must be {' or '.join(map(_wanted, get_args(kind)))}, not {shown(value)}")


def _an_instance(kind: Any) -> Callable[[Any, Any], Any]:
    """Kinds that nothing is known about: what strands of one's own may be given."""

    def structure(value: Any, _: Any) -> Any:
        if isclass(kind) and not isinstance(value, kind):
            raise _wrong(value, kind)
        return value

    return structure


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True, structure_fallback_factory=_an_instance)
    for kind in (int, float, str, bool, type(None)):
        converter.register_structure_hook(kind, _exactly)
    converter.register_structure_hook_func(_is_choice, _one_of)
    converter.register_structure_hook_func(_is_union, _any_of)
    converter.register_structure_hook_func(_is_list, _each_of)
    converter.register_structure_hook_factory(
        is_dataclass, lambda cls: make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True)
    )
    return converter


_CONVERTER = _converter()


def _sentence(error: BaseException, path: str = "") -> str:
    """The first mistake of a validation error, as one sentence."""
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        owner = error.cl
        key = sorted(error.extra_fields)[0]
        known = [path + f.name for f in fields(owner) if f.name not in NOT_SET]
        if not path and key in ELSEWHERE:
            return f"no setting is called {key!r}; did you mean {ELSEWHERE[key]!r}?"
        return str(unknown("setting", path + key, known))
    if isinstance(error, cattrs.BaseValidationError):
        first = error.exceptions[0]
        note = next((n for n in getattr(first, "__notes__", []) if hasattr(n, "name")), None)
        if note is None:
            return _sentence(first, path)
        deeper = isinstance(first, cattrs.BaseValidationError)
        return _sentence(first, f"{path}{note.name}" + ("." if deeper else ""))
    where = path.rstrip(".") or "the configuration"
    return str(error) if isinstance(error, UserError) else f"{where} {error}"
