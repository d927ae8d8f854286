"""C templates for reductions over dimensions: sums, means, maxima, softmaxes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor

from fedbraid.engines.codegen.c_code import TYPES, Arguments, Operation, Unsupported, Writer, axes_of, suffix

LANES = 8
"""Partial sums of a long reduction. One running sum is a chain of dependent additions that no compiler may vectorise
without changing its order; eight sums fill a vector register. Their number is fixed, so that the order of a sum does
not depend on the processor."""


def _walk(shape: Sequence[int], names: str) -> tuple[list[str], list[str]]:
    """Return index expressions for a shape, and the loop heads that run through them."""
    index = [f"{names}{d}" if n > 1 else "0" for d, n in enumerate(shape)]
    return index, [f"for (int64_t {i} = 0; {i} < {n}; ++{i}) {{" for i, n in zip(index, shape, strict=True) if n > 1]


def _reduced(start: str, step: str, end: str = "{acc}", reorder: bool = True) -> Operation:
    """Return a reduction: `{acc}` starts as `start`, `step` runs for each `{x}`, and the result is `end`.

    Floating-point sums accumulate in double: a running sum in float32 would be less accurate than torch's blocked one.
    """

    def write(w: Writer, out: Tensor, a: Arguments) -> None:
        x, keeps = a["self"], a.get("keepdim", False)
        dims = sorted(axes_of(a.get("dim"), x.dim()))
        if a.get("ord", 2) != 2:
            raise Unsupported("a norm other than the Euclidean")
        if "INFINITY" in start and not x.is_floating_point():
            raise Unsupported("the largest of whole numbers")
        result = out
        for d in [] if keeps else dims:
            result = result.unsqueeze(d)
        kind = "double" if x.is_floating_point() or out.is_floating_point() else "int64_t"
        kept = [1 if d in dims else n for d, n in enumerate(x.shape)]
        gone = [n if d in dims else 1 for d, n in enumerate(x.shape)]
        count = prod(gone)

        def body(index: list[str]) -> list[str]:
            inner, heads = _walk(gone, "k")
            place = [k if d in dims else i for d, (i, k) in enumerate(zip(index, inner, strict=True))]
            value = f"({kind}){w.at(x, place)}"
            words = {"x": value, "f": "", "n": str(count)}
            last = max((d for d in dims if x.shape[d] > 1), default=-1)
            many = reorder and last >= 0 and x.shape[last] >= 4 * LANES
            if not many:
                lines = [f"{{ {kind} acc = {start};", *heads, step.format(acc="acc", **words), "}" * len(heads)]
                return [*lines, f"{w.at(result, index)} = {end.format(acc='acc', **words)}; }}"]
            length, k = x.shape[last], f"k{last}"
            whole = length - length % LANES
            lanes = [f"for (int64_t {k} = 0; {k} < {whole}; {k} += {LANES}) for (int l = 0; l < {LANES}; ++l) {{"]
            moved = [f"({k} + l)" if p == k else p for p in place]
            words_of_lane = words | {"x": f"({kind}){w.at(x, moved)}"}
            rest = [f"for (int64_t {k} = {whole}; {k} < {length}; ++{k}) {{", step.format(acc="part[0]", **words), "}"]
            return [
                f"{{ {kind} part[{LANES}] = {{0}};",
                *heads[:-1],
                *lanes,
                step.format(acc="part[l]", **words_of_lane),
                "}",
                *rest,
                "}" * (len(heads) - 1),
                f"{kind} acc = 0; for (int l = 0; l < {LANES}; ++l) acc += part[l];",
                f"{w.at(result, index)} = {end.format(acc='acc', **words)}; }}",
            ]

        w.loops(kept, body)

    return write


def _along(*, before: str, over: Sequence[str], after: str) -> Operation:
    """Return an operation on rows along one dimension: loops `over` in order, then the loop `after`."""

    def write(w: Writer, out: Tensor, a: Arguments) -> None:
        tensors = {key: value for key, value in a.items() if isinstance(value, Tensor)}
        (dim,) = axes_of(a["dim"], out.dim())
        kind, length = TYPES[out.dtype], out.shape[dim]

        def body(index: list[str]) -> list[str]:
            place = [*index[:dim], "k", *index[dim + 1 :]]
            words = {key: w.at(t, place) for key, t in tensors.items()} | {"out": w.at(out, place)}
            words |= {"T": kind, "f": suffix(out.dtype)}
            loop = f"for (int64_t k = 0; k < {length}; ++k) {{"
            return ["{", before.format(**words), *(f"{loop} {line.format(**words)} }}" for line in (*over, after)), "}"]

        w.loops([1 if d == dim else n for d, n in enumerate(out.shape)], body)

    return write


LARGEST = "m = {self} > m || {self} != {self} ? {self} : m;"
LOG_SOFTMAX = _along(
    before="{T} m = -INFINITY, s = 0;",
    over=[LARGEST, "s += exp{f}({self} - m);"],
    after="{out} = {self} - m - log{f}(s);",
)
SOFTMAX = _along(
    before="{T} m = -INFINITY, s = 0;",
    over=[LARGEST, "{out} = exp{f}({self} - m); s += {out};"],
    after="{out} /= s;",
)
LOG_SOFTMAX_BACKWARD = _along(
    before="{T} s = 0;", over=["s += {grad_output};"], after="{out} = {grad_output} - exp{f}({output}) * s;"
)
SOFTMAX_BACKWARD = _along(
    before="{T} s = 0;",
    over=["s += {grad_output} * {output};"],
    after="{out} = {output} * ({grad_output} - s);",
)


def _logsumexp(w: Writer, out: Tensor, a: Arguments) -> None:
    x, (dim,) = a["self"], axes_of(a["dim"], a["self"].dim())
    result, kind, f = out if a["keepdim"] else out.unsqueeze(dim), TYPES[out.dtype], suffix(out.dtype)

    def body(index: list[str]) -> list[str]:
        value = w.at(x, [*index[:dim], "k", *index[dim + 1 :]])
        loop = f"for (int64_t k = 0; k < {x.shape[dim]}; ++k)"
        return [
            f"{{ {kind} m = -INFINITY, s = 0;",
            f"{loop} m = {value} > m || {value} != {value} ? {value} : m;",
            f"if (isinf(m)) m = m > 0 ? m : 0; {loop} s += exp{f}({value} - m);",
            f"{w.at(result, index)} = isinf(m) ? m : m + log{f}(s); }}",
        ]

    w.loops([1 if d == dim else n for d, n in enumerate(x.shape)], body)


def _argmax(w: Writer, out: Tensor, a: Arguments) -> None:
    """Index of the first maximum; NaN counts as larger than all numbers."""
    if a["dim"] is None:
        raise Unsupported("where the largest of all dimensions is")
    x, (dim,) = a["self"], axes_of(a["dim"], a["self"].dim())
    result = out if a["keepdim"] else out.unsqueeze(dim)

    def body(index: list[str]) -> list[str]:
        value = w.at(x, [*index[:dim], "k", *index[dim + 1 :]])
        return [
            f"{{ {TYPES[x.dtype]} m = {w.at(x, [*index[:dim], '0', *index[dim + 1 :]])}; int64_t best = 0;",
            f"for (int64_t k = 1; k < {x.shape[dim]}; ++k)",
            f"if ({value} > m || ({value} != {value} && m == m)) {{ m = {value}; best = k; }}",
            f"{w.at(result, index)} = best; }}",
        ]

    w.loops([1 if d == dim else n for d, n in enumerate(x.shape)], body)


REDUCTIONS: dict[str, Operation] = {
    "sum": _reduced("0", "{acc} += {x};"),
    "mean": _reduced("0", "{acc} += {x};", "{acc} / {n}"),
    "linalg_vector_norm": _reduced("0", "{acc} += {x} * {x};", "sqrt({acc})"),
    "amax": _reduced("-INFINITY", "{acc} = {x} > {acc} || {x} != {x} ? {x} : {acc};", reorder=False),
    "amin": _reduced("INFINITY", "{acc} = {x} < {acc} || {x} != {x} ? {x} : {acc};", reorder=False),
    "argmax": _argmax,
    "logsumexp": _logsumexp,
    "_log_softmax": LOG_SOFTMAX,
    "_softmax": SOFTMAX,
    "_log_softmax_backward_data": LOG_SOFTMAX_BACKWARD,
    "_softmax_backward_data": SOFTMAX_BACKWARD,
}
