"""A tensor function as a flat list of operations.

Function transforms and hooks cost Python time at every call. Recording what they finally ask of the dispatcher, once
for each shape, leaves a straight line of operations. The function must be pure and must not look at tensors' values.
(`make_fx` does the same and more; this takes a fortieth of its time, which matters when a run makes a few programs.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Flat = Callable[..., list[Tensor]]

_VALUE = re.compile(r"\bv\d+\b")


def trace(function: Flat, inputs: Sequence[Tensor]) -> Flat:
    """`function` for inputs of these shapes, as straight-line code."""
    apart = [t.clone() for t in inputs]  # two inputs that alias would be taken for one
    recorder = _Recorder(apart)
    with torch.no_grad(), recorder:
        outputs = function(*apart)
    return recorder.compiled(outputs)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes every operation down as a line of Python over numbered values."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = {id(t): f"x{i}" for i, t in enumerate(inputs)}
        self.alive: list[Any] = list(inputs)  # so that no id is used twice
        self.inputs = len(inputs)
        self.lines: list[str] = []
        self.bound: dict[str, Any] = {}  # operations and constants by name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise TypeError(
                "a hook looked at a tensor's value (a Python `if`, float(...) or .item() on a tensor); "
                "inside client hooks use torch.where, clamp or a mask instead"
            )
        result = func(*args, **kwargs)
        words = [self._word(a) for a in args] + [f"{k}={self._word(v)}" for k, v in kwargs.items()]
        call = f"{self._bind('f', func)}({', '.join(words)})"
        self.lines.append(f"{self._target(result)} = {call}")
        return result

    def _target(self, result: Any) -> str:
        self.alive.append(result)
        if isinstance(result, Tensor):
            return self.names.setdefault(id(result), f"v{len(self.alive)}")
        if isinstance(result, tuple | list):
            return "(" + "".join(self._target(part) + ", " for part in result) + ")"
        return "_"

    def _word(self, value: Any) -> str:
        if isinstance(value, Tensor):
            self.alive.append(value)
            return self.names.get(id(value)) or self._bind("c", value)
        if isinstance(value, tuple | list):
            return "[" + ", ".join(map(self._word, value)) + "]"
        if value is None or isinstance(value, bool | int):
            return repr(value)
        return self._bind("c", value)

    def _bind(self, kind: str, value: Any) -> str:
        for name, known in self.bound.items():
            if known is value:
                return name
        name = f"{kind}{len(self.bound)}"
        self.bound[name] = value
        return name

    def compiled(self, outputs: Sequence[Tensor]) -> Flat:
        last = self._last_uses(outputs)
        body = [line + "".join(f"; del {name}" for name in last.get(i, ())) for i, line in enumerate(self.lines)]
        head = f"def program({', '.join(f'x{i}' for i in range(self.inputs))}):"
        tail = f"return [{', '.join(self._word(t) for t in outputs)}]"
        space = dict(self.bound)
        exec(compile("\n    ".join([head, *body, tail]), "<traced step>", "exec"), space)
        program: Flat = space["program"]
        return program

    def _last_uses(self, outputs: Sequence[Tensor]) -> dict[int, list[str]]:
        """Values to forget after each line, so that memory is freed as eager execution would."""
        returned = {self._word(t) for t in outputs}
        seen: set[str] = set()
        last: dict[int, list[str]] = {}
        for i in range(len(self.lines) - 1, -1, -1):
            words = set(_VALUE.findall(self.lines[i])) - seen - returned
            seen |= words
            if words:
                last[i] = sorted(words)
        return last
