"""Code generation: a recorded local step as C, inside a loop over the steps of one client.

Shapes are known, and a view is another set of strides over the same memory, so that every operation becomes a few loops
with fixed bounds. Large products call the BLAS of torch. An operation without a template makes the step unsupported,
and the engine runs it as a stack.

Memory. A value is identified by the address of its storage while the trace is alive. Inputs keep their own memory;
every value that a step computes gets a fixed offset in a scratch block of each thread; constants are passed as
pointers. The state is updated in place at the end of each step, after every read of the old state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isinf, isnan
from typing import Any

import torch
from torch import Tensor

from fedbraid.engines.codegen.trace import Call, OperationTrace, tensors_in

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
"""Alignment in bytes of every value: a cache line, and the width of the widest vector unit."""


class Unsupported(Exception):
    """Raised for an operation that has no C template."""


@dataclass(frozen=True, eq=False)
class CSource:
    """The C source of a function `train`, and the memory that it needs.

    `train` receives for each client its first and last row of the plan and an array of pointers, in this order: the
    carried state (updated in place), the plan, the other inputs, the constants.
    """

    text: str
    carried: list[int]  # which inputs, in the order of the pointers
    planned: list[int]
    fixed: list[int]
    constants: list[Tensor]
    scratch: int  # bytes


def generate_c(recording: OperationTrace, state: int, rows: int, operations: Mapping[str, Operation]) -> CSource:
    """Return a recorded step as C. Raises Unsupported for an operation without a template.

    Args:
        recording: the operations of one step of one client.
        state: number of leading inputs that form the state; the step returns their new values in the same order.
        rows: number of inputs after them that are one row of the plan.
        operations: templates by the name of the operation.
    """
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
"""The loop of a thread: it takes the next client from a shared atomic counter, so that long clients hold nobody up. The
thread does not affect a result, since scratch memory is written before it is read."""


class Writer:
    """Writes recorded calls as lines of C."""

    def __init__(self, recording: OperationTrace, state: int, rows: int, operations: Mapping[str, Operation]) -> None:
        self.recording, self.state, self.rows, self.operations = recording, state, rows, operations
        self.names: dict[int, str] = {}  # memory -> the name of its pointer
        self.lines: list[str] = []
        self.constants: dict[str, Tensor] = {}
        self.values: list[str] = []
        self.scratch = 0

    def source(self) -> CSource:
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
        return CSource(written, carried, planned, fixed, list(self.constants.values()), self.scratch)

    # --- memory

    def _named(self, tensor: Tensor, name: str) -> None:
        if tensor.dtype not in TYPES:
            raise Unsupported(f"numbers of type {tensor.dtype}")
        if tensor.numel():
            self.names[_memory(tensor)] = name

    def _value(self, tensor: Tensor) -> None:
        """Reserve scratch memory for a tensor that the step computes."""
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
        """Write the new state over the old one at the end of the step, since the step reads the old one until then.

        A new value that aliases an old one (an unchanged or swapped tensor) is staged in scratch memory first: copied
        directly, it could already have been overwritten by an earlier copy.
        """
        r = self.recording
        old = {_memory(r.inputs[i]) for i in carried}
        staged = []
        for i in carried:
            new = r.outputs[i]
            if _memory(new) in old:  # an old value that moves to another tensor of the state
                new = new.clone()
                self._value(new)
                self.copy(new, r.outputs[i])
            staged.append(new)
        for i, new in zip(carried, staged, strict=True):
            self.copy(r.inputs[i], new)
        self._staged = staged  # alive, so that no later tensor gets their address, which identifies them

    # --- lines

    def at(self, tensor: Tensor, index: Sequence[str], strides: Sequence[int] | None = None) -> str:
        """Return the C expression of an element, from one index expression for each dimension."""
        steps = zip(index, tensor.stride() if strides is None else strides, strict=True)
        terms = [i if s == 1 else f"{i} * {s}" for i, s in steps if s and i != "0"]
        place = tensor.storage_offset()
        return f"{self._name(tensor)}[{' + '.join([*([str(place)] if place or not terms else []), *terms])}]"

    def loops(self, shape: Sequence[int], body: Callable[[list[str]], Iterable[str]], apart: bool = False) -> None:
        """Write loops over `shape` around `body`. `apart`: iterations of the innermost loop are independent.

        Independent loops get `ivdep`, which lets GCC vectorise without a check for overlapping pointers. It must not be
        set for sums into one element.
        """
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
        """Write `out` elementwise from operands: tensors that broadcast to its shape, or numbers.

        `computed` is the type of the arithmetic if it differs from that of `out`.
        """
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


def _needed(recording: OperationTrace) -> list[Call]:
    """Return the calls to emit: no views, constants or dead code. Raises Unsupported for writes to inputs."""
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
    """Merge adjacent dimensions that every operand walks through contiguously: fewer and longer loops."""
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
    """Return a Python number as a C literal."""
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
    """Return dimensions in torch's notation (None or [] for all) as non-negative numbers."""
    if dim is None or dim == []:
        return list(range(of))
    return [d % of for d in ([dim] if isinstance(dim, int) else dim)] if of else []


def suffix(dtype: torch.dtype) -> str:
    """Return the suffix of C's math functions for a type: "f" for float32."""
    return "f" if dtype == torch.float32 else ""
