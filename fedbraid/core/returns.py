"""What each hook must return, and a sentence with the hook's name where a strand's does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import unwrap
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedbraid.core.batch import Batch
from fedbraid.core.tree import Ask
from fedbraid.errors import UserError

Fits = Callable[[Any, tuple[Any, ...]], bool]
"""Whether a value may be returned, given the hook's arguments."""


@dataclass(frozen=True)
class Due:
    """What a hook must return."""

    words: str
    fits: Fits


def checked(hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A strand's hook that refuses to return anything but what is due."""
    due = DUE[hook]

    @wraps(function)
    def returning(self: Any, *given: Any, **named: Any) -> Any:
        value = function(self, *given, **named)
        if not due.fits(value, given):
            code = unwrap(function).__code__
            where = place(code.co_filename, code.co_firstlineno)
            raise UserError(f"{hook} of {self.name} ({where}) returns {_described(value)}; it must return {due.words}")
        return value

    return returning


def place(file: str, line: int) -> str:
    """Where something is, as seen from here."""
    near = os.path.relpath(file)
    return f"{file if near.startswith('..') else near}:{line}"


def _described(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, Mapping):
        odd = next((key for key, part in value.items() if not isinstance(part, Tensor | np.ndarray)), None)
        return "a dict" if odd is None else f"a dict with {odd!r} = {value[odd]!r:.60}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_described, value))})" if value else "an empty tuple"
    return f"{value!r:.60}"


def _is_tree(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(v, Tensor) or _is_tree(v) for v in value.values())


def _tree(value: Any, given: tuple[Any, ...]) -> bool:
    return _is_tree(value)


def _payload(value: Any, given: tuple[Any, ...]) -> bool:
    return _is_tree(value.payload if isinstance(value, Ask) else value)


def _is_arrays(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(part, np.ndarray) for part in value.values())


def _two_arrays(value: Any, given: tuple[Any, ...]) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_arrays, value))


def _tensor(value: Any, given: tuple[Any, ...]) -> bool:
    return isinstance(value, Tensor)


def _number(value: Any, given: tuple[Any, ...]) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0


def _like_first(value: Any, given: tuple[Any, ...]) -> bool:
    """Shaped as the first argument, where that is not given by name."""
    return isinstance(value, Tensor) and (not given or value.shape == given[0].shape)


def _gradient(value: Any, given: tuple[Any, ...]) -> bool:
    if isinstance(value, tuple):
        return len(value) == 2 and _like_first(value[0], given) and _is_tree(value[1])
    return _like_first(value, given)


def _own_model(value: Any, given: tuple[Any, ...]) -> bool:
    if isinstance(value, tuple):
        return len(value) == 2 and _like_first(value[0], given) and _tensor(value[1], given)
    return _like_first(value, given)


def _weights(value: Any, given: tuple[Any, ...]) -> bool:
    return isinstance(value, Tensor) and value.dim() in (1, 2) and (not given or len(value) == len(given[0]))


def _step_and_tree(value: Any, given: tuple[Any, ...]) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    return (value[0] is None or _like_first(value[0], given)) and _is_tree(value[1])


def _aggregate_and_tree(value: Any, given: tuple[Any, ...]) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    return _tensor(value[0], given) and (not given or value[0].shape == given[0].shape[1:]) and _is_tree(value[1])


def _two_trees(value: Any, given: tuple[Any, ...]) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_tree, value))


def _models(value: Any, given: tuple[Any, ...]) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(view, tuple) and len(view) == 2 and all(isinstance(part, Tensor) for part in view)
        for view in value.values()
    )


TREE = "a dict of tensors"
DUE: dict[str, Due] = {
    "model": Due("the network, an nn.Module", lambda value, _: isinstance(value, nn.Module)),
    "init_server": Due(f"{TREE}: the state to begin with", _tree),
    "init_client": Due(f"{TREE}: the state to begin with", _tree),
    "send": Due(f"{TREE}, PerClient(...) or Ask(...)", _payload),
    "probe": Due(f"{TREE}: the client's answers", _tree),
    "draw": Due(
        "(steps, once), two dicts of NumPy arrays: for the local steps, their first axis, and for the round",
        _two_arrays,
    ),
    "begin": Due(f"{TREE}: the memory", _tree),
    "batch": Due("a Batch, such as replace(batch, x=...)", lambda value, _: isinstance(value, Batch)),
    "views": Due("models by name, each (parameters, buffers)", _models),
    "logits": Due("a tensor, the logits", _tensor),
    "loss": Due("a tensor of no dimensions, the term to add", _number),
    "grad": Due("a tensor shaped as w, the gradient, or (gradient, memory)", _gradient),
    "step": Due(f"{TREE}: the memory", _tree),
    "end": Due("(uploads, kept), two dicts of tensors: what to upload and what to keep", _two_trees),
    "weigh": Due("a tensor shaped as the shares it is given", _like_first),
    "rescale": Due("a tensor shaped as the weights it is given, or [clients, parameters]", _weights),
    "aggregate": Due(
        "(aggregate, kept): a vector shaped as one row of the updates, and a dict with the state to keep",
        _aggregate_and_tree,
    ),
    "absorb": Due(f"{TREE}: the state to keep", _tree),
    "update": Due(
        "(delta, kept): the step, shaped as delta, or None, and a dict with the state to keep", _step_and_tree
    ),
    "deploy": Due("a tensor shaped as w, the model", _like_first),
    "personalise": Due("a vector like w, the client's own model, or (vector, buffers)", _own_model),
}
"""By hook."""
