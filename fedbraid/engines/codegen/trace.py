"""Tracing: a tensor function as a flat list of operations.

Function transforms and hooks cost Python time at every call. Recording the operations that reach the dispatcher, once
for each combination of shapes, leaves a straight line of them; views without effect, repeated operations and constants
are dropped. The function must be pure and must not read tensor values: a value read once would be frozen into the
program. (`make_fx` records too, but takes forty times as long, which matters when a run needs several programs.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbraid.core.dispatch import Mode
from fedbraid.errors import UserError

Flat = Callable[..., list[Tensor]]

LOOKS = (
    "a client hook looked at a tensor's value (a Python `if`, float(...) or .item() on a tensor); "
    "use torch.where, clamp or a mask instead"
)

DRAWS = "a client hook draws at random, which the run's seed does not repeat; a client's randomness comes from `draw`"


def trace(function: Flat, inputs: Sequence[Tensor]) -> Flat:
    """Return `function` as straight-line code for inputs of these shapes and types.

    Raises UserError if the function reads a tensor's value. Inputs are made contiguous, since the recorded views assume
    it.
    """
    recording = record(function, inputs)
    program = _Writer(recording.inputs, recording.calls).program(recording.outputs)
    return lambda *tensors: program(*(t.contiguous() for t in tensors))


@dataclass(frozen=True, eq=False)
class Call:
    """One recorded operation.

    It holds its tensors alive. Values are identified by `id()` and by memory address, and Python and torch reuse both
    as soon as a tensor is freed: without the references two different values could become one in the program.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    @property
    def writes(self) -> list[Tensor]:
        """Return the tensors that the operation changes in place."""
        schema = self.function._schema.arguments
        named = zip(schema, self.args, strict=False)
        return [t for s, a in named if s.alias_info and s.alias_info.is_write for t in tensors_in(a)]

    @property
    def nothing(self) -> Tensor | None:
        """Return the first argument if the operation is a view of it with the same memory, shape and strides."""
        first = self.args[0] if self.args else None
        if not (self.function.is_view and isinstance(first, Tensor) and isinstance(self.result, Tensor)):
            return None
        return first if _place(first) == _place(self.result) else None


@dataclass(frozen=True, eq=False)
class OperationTrace:
    """The operations of one call of a function, in order, with its inputs and outputs."""

    inputs: list[Tensor]
    calls: list[Call]
    outputs: list[Tensor]


def record(function: Flat, inputs: Sequence[Tensor]) -> OperationTrace:
    """Record one call of `function`."""
    # Copies: two inputs that share memory would be taken for one value. Contiguous: recorded views assume it.
    apart = [t.clone(memory_format=torch.contiguous_format) for t in inputs]
    recorder = _Recorder()
    with torch.no_grad(), recorder:
        outputs = function(*apart)
    return OperationTrace(apart, recorder.calls, outputs)


class _Recorder(Mode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise UserError(LOOKS)
        result = func(*args, **(kwargs or {}))
        self.calls.append(Call(func, tuple(args), kwargs or {}, result))
        return result


class _Writer:
    """Writes recorded calls as Python source over numbered values: x0.. inputs, v.. results, f.. and c.. constants."""

    def __init__(self, inputs: Sequence[Tensor], calls: Sequence[Call]) -> None:
        self.calls, self.inputs = calls, inputs
        self.names = {id(t): f"x{i}" for i, t in enumerate(inputs)}
        self.bound: dict[str, Any] = {}  # operations and constants by name
        self.known: dict[int, str] = {}
        # With a write in place, equal calls may return different values and constants may change: only views are left
        # out then. Otherwise calls are pure, and common subexpressions and constants are dropped.
        self.careful = any(call.writes for call in calls)
        self.lines: list[str] = []

    def program(self, outputs: Sequence[Tensor]) -> Flat:
        before: dict[str, Any] = {}  # calls already made
        for call in self.calls:
            self._add(call, before)
        results = [self._word(t) for t in outputs]
        head = f"def program({', '.join(f'x{i}' for i in range(len(self.inputs)))}):"
        source = "\n    ".join([head, *_forgetting(self.lines, results), f"return [{', '.join(results)}]"])
        space = dict(self.bound)
        exec(compile(source, "<traced step>", "exec"), space)
        program: Flat = space["program"]
        return program

    def _add(self, call: Call, before: dict[str, Any]) -> None:
        pure, same = not self.careful, call.nothing
        if same is not None:
            self.names[id(call.result)] = self._word(same)
            return
        if pure and not any(id(t) in self.names for t in tensors_in((call.args, call.kwargs))):
            return  # depends on no input: the recorded result is bound as a constant where it is used
        words = [self._word(a) for a in call.args] + [f"{k}={self._word(v)}" for k, v in call.kwargs.items()]
        text = f"{self._bind('f', call.function)}({', '.join(words)})"
        if pure and text in before:
            for new, old in zip(tensors_in(call.result), before[text], strict=True):
                self.names[id(new)] = self.names[id(old)]
            return
        before[text] = list(tensors_in(call.result))
        self.lines.append(f"{self._target(call.result)} = {text}")

    def _target(self, result: Any) -> str:
        if isinstance(result, Tensor):
            return self.names.setdefault(id(result), f"v{len(self.names)}")
        if isinstance(result, tuple | list):
            return "(" + "".join(self._target(part) + ", " for part in result) + ")"
        return "_"

    def _word(self, value: Any) -> str:
        if isinstance(value, Tensor):
            return self.names.get(id(value)) or self._bind("c", value)
        if isinstance(value, tuple | list):
            return "[" + ", ".join(map(self._word, value)) + "]"
        if value is None or isinstance(value, bool | int):
            return repr(value)
        return self._bind("c", value)

    def _bind(self, kind: str, value: Any) -> str:
        if id(value) not in self.known:
            self.known[id(value)] = f"{kind}{len(self.bound)}"
            self.bound[self.known[id(value)]] = value
        return self.known[id(value)]


_VALUE = re.compile(r"\bv\d+\b")


def _forgetting(lines: Sequence[str], results: Iterable[str]) -> list[str]:
    """Drop dead lines and delete each value after its last use, so that peak memory is that of eager execution."""
    needed = {word for result in results for word in _VALUE.findall(result)}
    kept: list[str] = []
    for line in reversed(lines):
        target, _, call = line.partition(" = ")
        makes, uses = set(_VALUE.findall(target)), set(_VALUE.findall(call))
        in_place = makes <= uses  # an operation that writes into its argument returns it
        if not in_place and not makes & needed:
            continue
        last = sorted((uses | makes) - needed)
        needed |= uses | makes
        kept.append(line + (f"; del {', '.join(last)}" if last else ""))
    return kept[::-1]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
