"""A recorded local step as C: a loop over the steps of one client.

Shapes are known, and a view is only another way to walk through the same memory, so that every operation becomes a few
loops with fixed bounds. Large products go to the BLAS that torch brings along. An operation that is not known here
makes the whole step unsupported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isinf, isnan
from typing import Any

import torch
from torch import Tensor

from fedbraid.engines.codegen.trace import Call, RunWriter, tensors_in

TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.uint8: "uint8_t",
    torch.bool: "uint8_t",
}
Arguments = Mapping[str, Any]
Operation = Callable[["Writer", Tensor, Arguments], None]
"""(writer, result, arguments by name): writes the lines that compute a result."""
ALIGNED = 64
"""Bytes that every value's memory begins at a multiple of."""


class Unsupported(Exception):
    """An operation that cannot be written as C here."""


@dataclass(frozen=True, eq=False)
class Source:
    """A function `train` in C and the memory that it wants.

    It takes, for each client, the first and the last row of the plan and pointers: to what is carried, to the plan, to
    the rest of what is taken, and to the constants. What is carried is changed where it lies.
    """

    text: str
    carried: list[int]  # which inputs, in the order of the pointers
    planned: list[int]
    fixed: list[int]
    constants: list[Tensor]
    scratch: int  # bytes


def as_c(recording: RunWriter, state: int, rows: int, operations: Mapping[str, Operation]) -> Source:
    """A step as C. Its first `state` inputs are those it gives anew, and `rows` more come from a plan."""
    return Writer(recording, state, rows, operations).source()


HEAD = """#include <math.h>
#include <stdint.h>
#include <string.h>
typedef void gemm(const char*, const char*, const int*, const int*, const int*, const void*, const void*, const int*,
                  const void*, const int*, const void*, void*, const int*);
"""
EVERYBODY = """void train(int64_t clients, int64_t *next, const int64_t *starts, const int64_t *stops, void **in,
           char *work, gemm *sgemm, gemm *dgemm) {
for (int64_t k; (k = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < clients;)
one(starts[k], stops[k], in + k * %d, work, sgemm, dgemm);
}
"""
"""Client after client that no other thread has taken; a thread needs nothing of Python until all are done."""


class Writer:
    """Recorded calls as lines of C."""

    def __init__(self, recording: RunWriter, state: int, rows: int, operations: Mapping[str, Operation]) -> None:
        self.recording, self.state, self.rows, self.operations = recording, state, rows, operations
        self.names: dict[int, str] = {}  # memory -> the name of its pointer
        self.lines: list[str] = []
        self.constants: dict[str, Tensor] = {}
        self.values: list[str] = []
        self.scratch = 0

    def source(self) -> Source:
        r = self.recording
        for i, tensor in enumerate(r.inputs):
            self._named(tensor, f"x{i}")
        calls = _needed(r)
        for call in calls:
            for tensor in tensors_in(call.result):
                if tensor.numel() and _memory(tensor) not in self.names:
                    self._value(tensor)
        for call in calls:
            self._write(call)
        carried = [i for i, t in enumerate(r.outputs) if t is not r.inputs[i] and t.numel()]
        self._carry(carried)
        text = "\n".join(self.lines)
        used = [i for i in range(len(r.inputs)) if f"x{i}[" in text]
        planned = [i for i in used if self.state <= i < self.state + self.rows]
        fixed = [i for i in used if i not in carried and i not in planned]
        pointers = []
        for place, i in enumerate([*carried, *planned, *fixed]):
            kind, along = TYPES[r.inputs[i].dtype], f" + t * {r.inputs[i].numel()}" if i in planned else ""
            pointers.append(f"{kind} *const x{i} = ({kind} *)in[{place}]{along};")
        for place, (name, tensor) in enumerate(self.constants.items(), len(pointers)):
            pointers.append(f"{TYPES[tensor.dtype]} *const {name} = in[{place}];")
        body = "\n".join([*self.values, "for (int64_t t = start; t < stop; ++t) {", *pointers, text, "}"])
        head = "static void one(int64_t start, int64_t stop, void **in, char *work, gemm *sgemm, gemm *dgemm) {"
        written = f"{HEAD}{head}\n{body}\n}}\n{EVERYBODY % len(pointers)}"
        return Source(written, carried, planned, fixed, list(self.constants.values()), self.scratch)

    # --- memory

    def _named(self, tensor: Tensor, name: str) -> None:
        if tensor.dtype not in TYPES:
            raise Unsupported(f"numbers of type {tensor.dtype}")
        if tensor.numel():
            self.names[_memory(tensor)] = name

    def _value(self, tensor: Tensor) -> None:
        """Scratch memory for a tensor that the step makes."""
        name = f"v{len(self.values)}"
        self._named(tensor, name)
        self.values.append(f"{TYPES[tensor.dtype]} *const {name} = (void *)(work + {self.scratch});")
        self.scratch += -(-tensor.untyped_storage().nbytes() // ALIGNED) * ALIGNED

    def _name(self, tensor: Tensor) -> str:
        if _memory(tensor) not in self.names:  # nothing that it depends on ever changes
            name, length = f"c{len(self.constants)}", tensor.untyped_storage().nbytes() // tensor.element_size()
            self.constants[name] = torch.as_strided(tensor, (length,), (1,), 0).clone()
            self._named(tensor, name)
        return self.names[_memory(tensor)]

    def _carry(self, carried: Sequence[int]) -> None:
        """The new state in the place of the old: all of it at the end, since the step looks at the old one."""
        r = self.recording
        old = {_memory(r.inputs[i]) for i in carried}
        staged = []
        for i in carried:
            new = r.outputs[i]
            if _memory(new) in old:  # an old value that goes to another place
                new = new.clone()
                self._value(new)
                self.copy(new, r.outputs[i])
            staged.append(new)
        for i, new in zip(carried, staged, strict=True):
            self.copy(r.inputs[i], new)
        self._staged = staged  # keeps their memory from being taken for another's

    # --- lines

    def at(self, tensor: Tensor, index: Sequence[str], strides: Sequence[int] | None = None) -> str:
        """An element: one index for each dimension."""
        steps = zip(index, tensor.stride() if strides is None else strides, strict=True)
        terms = [i if s == 1 else f"{i} * {s}" for i, s in steps if s and i != "0"]
        place = tensor.storage_offset()
        return f"{self._name(tensor)}[{' + '.join([*([str(place)] if place or not terms else []), *terms])}]"

    def loops(self, shape: Sequence[int], body: Callable[[list[str]], Iterable[str]], apart: bool = False) -> None:
        """`body` for every index; `apart` where one turn of the innermost loop has nothing to do with another."""
        if 0 in shape:
            return
        index = [f"i{d}" if n > 1 else "0" for d, n in enumerate(shape)]
        heads = [f"for (int64_t {i} = 0; {i} < {n}; ++{i}) {{" for i, n in zip(index, shape, strict=True) if n > 1]
        closing = "}" * len(heads)
        if heads and apart:
            heads.insert(len(heads) - 1, "#pragma GCC ivdep")
        self.lines += [*heads, *body(index), closing]

    def pointwise(
        self, out: Tensor, template: str, operands: Mapping[str, Any], computed: torch.dtype | None = None
    ) -> None:
        """Every element of `out` from those of the operands: tensors that are expanded to its shape, or numbers."""
        dtype = computed or out.dtype
        kind = TYPES[dtype]
        views = {key: v.expand(out.shape) for key, v in operands.items() if isinstance(v, Tensor)}
        numbers = {key: f"(({kind}){number(v)})" for key, v in operands.items() if not isinstance(v, Tensor)}
        shape, strides = _collapsed(out.shape, [out.stride(), *(v.stride() for v in views.values())])

        def body(index: list[str]) -> list[str]:
            loaded = {
                key: ("" if v.dtype in (dtype, torch.bool) else f"({kind})") + self.at(v, index, s)
                for (key, v), s in zip(views.items(), strides[1:], strict=True)
            }
            value = template.format(**loaded, **numbers, f=suffix(dtype), T=kind)
            return [f"{self.at(out, index, strides[0])} = {value};"]

        self.loops(shape, body, apart=True)

    def copy(self, out: Tensor, source: Tensor) -> None:
        to_bool = out.dtype == torch.bool and source.dtype != torch.bool
        self.pointwise(out, "{x} != 0" if to_bool else "{x}", {"x": source}, source.dtype if to_bool else None)

    def fill(self, out: Tensor, value: Any) -> None:
        self.pointwise(out, "{x}", {"x": value})

    def _write(self, call: Call) -> None:
        name = call.function._schema.name.removeprefix("aten::")
        arguments = call.function._schema.arguments
        a = {s.name: s.default_value for s in arguments if s.has_default_value()}
        a |= dict(zip((s.name for s in arguments), call.args, strict=False)) | call.kwargs
        in_place = bool(call.writes)
        operation = self.operations.get(name.removesuffix("_") if in_place else name)
        out = a.get("self") if in_place else call.result
        if operation is None or not isinstance(out, Tensor):
            raise Unsupported(f"the operation {name}")
        operation(self, out, a)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _needed(recording: RunWriter) -> list[Call]:
    """The calls that compute something, that depend on the inputs, and that the outputs depend on."""
    inputs = _memories(recording.inputs)
    written = {m for call in recording.calls for m in _memories(call.writes)}
    if written & inputs:
        raise Unsupported("a step that writes into what it was given")
    live, computing = set(inputs), []
    for call in recording.calls:
        takes, gives = _memories((call.args, call.kwargs)), _memories(call.result) | _memories(call.writes)
        only_a_view = not call.writes and gives <= takes
        constant = not takes & live and not gives & written
        if not only_a_view and not constant:
            live |= gives
            computing.append((call, takes, gives))
    needed, kept = _memories(recording.outputs), []
    for call, takes, gives in reversed(computing):
        if gives & needed:
            needed |= takes
            kept.append(call)
    return kept[::-1]


def _memories(value: Any) -> set[int]:
    return {_memory(t) for t in tensors_in(value) if t.numel()}


def _collapsed(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """The same walk through memory in as few dimensions as possible."""
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for d, n in enumerate(shape):
        if n == 1:
            continue
        if sizes and all(s[-1] == own[d] * n for s, own in zip(steps, strides, strict=True)):
            sizes[-1] *= n
            for s, own in zip(steps, strides, strict=True):
                s[-1] = own[d]
            continue
        sizes.append(n)
        for s, own in zip(steps, strides, strict=True):
            s.append(own[d])
    return sizes, steps


def number(value: Any) -> str:
    """A Python number in C."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    if isinstance(value, float) and isnan(value):
        return "NAN"
    if not isinstance(value, int | float):
        raise Unsupported(f"an argument of type {type(value).__name__}")
    return repr(value)


def axes_of(dim: Any, of: int) -> list[int]:
    """Dimensions as torch has them (None or [] for all), counted from the front."""
    if dim is None or dim == []:
        return list(range(of))
    return [d % of for d in ([dim] if isinstance(dim, int) else dim)] if of else []


def suffix(dtype: torch.dtype) -> str:
    """How the names of C's functions for these numbers end."""
    return "f" if dtype == torch.float32 else ""
