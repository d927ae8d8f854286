"""What the operations of local steps are in C, by their name in torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from fedbraid.engines.c_code import TYPES, Operation, Unsupported, Writer, suffix

Arguments = Mapping[str, Any]

POINTWISE = {
    "abs": "fabs{f}({self})",
    "addcdiv": "{self} + {value} * {tensor1} / {tensor2}",
    "addcmul": "{self} + {value} * {tensor1} * {tensor2}",
    "clamp_max": "{self} > {max} ? {max} : {self}",
    "clamp_min": "{self} < {min} ? {min} : {self}",
    "div": "{self} / {other}",
    "exp": "exp{f}({self})",
    "expm1": "expm1{f}({self})",
    "log": "log{f}({self})",
    "log1p": "log1p{f}({self})",
    "masked_fill": "{mask} ? {value} : {self}",
    "maximum": "{self} > {other} || {self} != {self} ? {self} : {other}",
    "minimum": "{self} < {other} || {self} != {self} ? {self} : {other}",
    "mul": "{self} * {other}",
    "neg": "-{self}",
    "reciprocal": "1 / {self}",
    "relu": "{self} < 0 ? 0 : {self}",
    "rsqrt": "1 / sqrt{f}({self})",
    "sigmoid": "1 / (1 + exp{f}(-{self}))",
    "sigmoid_backward": "{grad_output} * {output} * (1 - {output})",
    "softplus": "{self} * {beta} > {threshold} ? {self} : log1p{f}(exp{f}({self} * {beta})) / {beta}",
    "softplus_backward": "{self} * {beta} > {threshold} ? {grad_output} : "
    "{grad_output} * exp{f}({self} * {beta}) / (exp{f}({self} * {beta}) + 1)",
    "sqrt": "sqrt{f}({self})",
    "tanh": "tanh{f}({self})",
    "tanh_backward": "{grad_output} * (1 - {output} * {output})",
    "threshold_backward": "{self} <= {threshold} ? 0 : {grad_output}",
    "where": "{condition} ? {self} : {other}",
}
LOGIC = {"and": "{self} && {other}", "or": "{self} || {other}", "not": "!{self}"}
COMPARISONS = {"eq": "==", "ge": ">=", "gt": ">", "le": "<=", "lt": "<", "ne": "!="}
LARGE = 4096
"""Multiplications from which a product goes to BLAS."""
LANES = 8
"""Sums are kept in so many parts, as vector units like it."""


def _pointwise(template: str) -> Operation:
    def write(w: Writer, out: Tensor, a: Arguments) -> None:
        if a.get("rounding_mode") is not None:
            raise Unsupported("a division that rounds")
        w.pointwise(out, template, {key: value for key, value in a.items() if f"{{{key}}}" in template})

    return write


def _logic(template: str) -> Operation:
    def write(w: Writer, out: Tensor, a: Arguments) -> None:
        if any(not isinstance(v, Tensor) or v.dtype != torch.bool for v in (out, *a.values())):
            raise Unsupported("logic with numbers")
        w.pointwise(out, template, a)

    return write


def _comparison(sign: str) -> Operation:
    def write(w: Writer, out: Tensor, a: Arguments) -> None:
        both = {key: a[key] for key in ("self", "other")}
        w.pointwise(out, f"{{self}} {sign} {{other}}", both, torch.result_type(*both.values()))

    return write


def _added(template: str) -> Operation:
    """Sums and differences, in which one side may be scaled."""

    def write(w: Writer, out: Tensor, a: Arguments) -> None:
        scaled = template if a["alpha"] != 1 else template.replace("{alpha} * ", "")
        w.pointwise(out, scaled, _some(a, "self", "other", "alpha"))

    return write


def _clamp(w: Writer, out: Tensor, a: Arguments) -> None:
    low = "{self} < {min} ? {min} : " if a["min"] is not None else ""
    high = "{self} > {max} ? {max} : " if a["max"] is not None else ""
    w.pointwise(out, f"{low}{high}{{self}}", {key: a[key] for key in ("self", "min", "max") if a[key] is not None})


def _pow(w: Writer, out: Tensor, a: Arguments) -> None:
    simple = {2: "{self} * {self}", 3: "{self} * {self} * {self}", 0.5: "sqrt{f}({self})", -1: "1 / {self}"}
    exponent = a["exponent"]
    known = simple.get(exponent) if isinstance(exponent, int | float) else None
    w.pointwise(out, known or "pow{f}({self}, {exponent})", _some(a, "self", "exponent"))


def _copied(w: Writer, out: Tensor, a: Arguments) -> None:
    w.copy(out, a["src"] if "src" in a else a["self"])


def _filled(value: Any) -> Operation:
    """Everything is `value`: a number, or the name of the argument that has it."""
    return lambda w, out, a: w.fill(out, a[value] if isinstance(value, str) else value)


def _nothing(w: Writer, out: Tensor, a: Arguments) -> None:
    """Memory as it is."""


# --- over some dimensions


def _walk(shape: Sequence[int], names: str) -> tuple[list[str], list[str]]:
    """Indices for a shape, and the loops that run through them."""
    index = [f"{names}{d}" if n > 1 else "0" for d, n in enumerate(shape)]
    return index, [f"for (int64_t {i} = 0; {i} < {n}; ++{i}) {{" for i, n in zip(index, shape, strict=True) if n > 1]


def _reduced(start: str, step: str, end: str = "{acc}", reorder: bool = True) -> Operation:
    """One number of many: `{acc}` begins as `start`, takes `step` for each `{x}`, and becomes `end`."""

    def write(w: Writer, out: Tensor, a: Arguments) -> None:
        x, keeps = a["self"], a.get("keepdim", False)
        dims = sorted(_dims(a.get("dim"), x.dim()))
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
    """Rows along one dimension: `over` are loops through a row, one after another; `after` is its last."""

    def write(w: Writer, out: Tensor, a: Arguments) -> None:
        tensors = {key: value for key, value in a.items() if isinstance(value, Tensor)}
        (dim,) = _dims(a["dim"], out.dim())
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
    x, (dim,) = a["self"], _dims(a["dim"], a["self"].dim())
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
    """The first of the largest, and before all what is no number."""
    if a["dim"] is None:
        raise Unsupported("where the largest of all dimensions is")
    x, (dim,) = a["self"], _dims(a["dim"], a["self"].dim())
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


# --- products


def _mm(w: Writer, out: Tensor, a: Arguments) -> None:
    w.fill(out, 0)
    _product(w, out, a["self"], a["mat2"])


def _mv(w: Writer, out: Tensor, a: Arguments) -> None:
    w.fill(out, 0)
    _product(w, out[:, None], a["self"], a["vec"][:, None])


def _dot(w: Writer, out: Tensor, a: Arguments) -> None:
    w.fill(out, 0)
    _product(w, out[None, None], a["self"][None], a["tensor"][:, None])


def _bmm(w: Writer, out: Tensor, a: Arguments) -> None:
    w.fill(out, 0)
    for each, one, other in zip(out, a["self"], a["mat2"], strict=True):
        _product(w, each, one, other)


def _addmm(w: Writer, out: Tensor, a: Arguments) -> None:
    if a["alpha"] != 1 or a["beta"] != 1:
        raise Unsupported("a product that is scaled")
    w.copy(out, a["self"].expand(out.shape))
    _product(w, out, a["mat1"], a["mat2"])


def _product(w: Writer, out: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds a @ b to `out`."""
    (m, k), n = a.shape, b.shape[1]
    if not out.numel() or not k:
        return
    blas = out.is_floating_point() and m * n * k >= LARGE and out.is_contiguous() and min(m, n) > 1
    left, right = _for_blas(a), _for_blas(b)
    if not (blas and left and right):
        w.loops(
            (m, k, n),
            lambda at: [f"{w.at(out, [at[0], at[2]])} += {w.at(a, at[:2])} * {w.at(b, at[1:])};"],
            apart=n > 1,  # else the innermost loop sums up
        )
        return
    kind, name = TYPES[out.dtype], f"{'s' if out.dtype == torch.float32 else 'd'}gemm"
    # rows here are columns there, so that the product is taken the other way round
    w.lines += [
        f"{{ const int m = {n}, n = {m}, k = {k}, lda = {right[1]}, ldb = {left[1]}, ldc = {n}; const {kind} one = 1;",
        f'{name}("{right[0]}", "{left[0]}", &m, &n, &k, &one, &{w.at(b, ["0", "0"])}, &lda, '
        f"&{w.at(a, ['0', '0'])}, &ldb, &one, &{w.at(out, ['0', '0'])}, &ldc); }}",
    ]


def _for_blas(matrix: Tensor) -> tuple[str, int] | None:
    """How BLAS is told of a matrix: as it is or transposed, and how far its rows lie apart."""
    (rows, columns), (down, right) = matrix.shape, matrix.stride()
    if (right == 1 or columns == 1) and (down >= columns or rows == 1):
        return "N", max(down if rows > 1 else columns, 1)
    if (down == 1 or rows == 1) and (right >= rows or columns == 1):
        return "T", max(right if columns > 1 else rows, 1)
    return None


# --- parts of tensors


def _cat(w: Writer, out: Tensor, a: Arguments) -> None:
    (dim,), at = _dims(a["dim"], out.dim()), 0
    for part in a["tensors"]:
        if part.numel():
            w.copy(out.narrow(dim, at, part.shape[dim]), part)
            at += part.shape[dim]


def _index(w: Writer, out: Tensor, a: Arguments) -> None:
    x, indices = a["self"], a["indices"]
    if any(i is None or i.dtype != torch.int64 for i in indices):
        raise Unsupported("indexing that is not by whole numbers from the first dimension on")
    expanded = torch.broadcast_tensors(*indices)  # type: ignore[no-untyped-call]
    dims = expanded[0].dim()

    def body(place: list[str]) -> list[str]:
        first, rest = place[:dims], place[dims:]
        rows = [_wrapped(w.at(i, first), n) for i, n in zip(expanded, x.shape, strict=False)]
        return [f"{w.at(out, place)} = {w.at(x, [*rows, *rest])};"]

    w.loops(out.shape, body, apart=True)


def _index_select(w: Writer, out: Tensor, a: Arguments) -> None:
    x, index, (dim,) = a["self"], a["index"], _dims(a["dim"], a["self"].dim())

    def body(place: list[str]) -> list[str]:
        row = _wrapped(w.at(index, [place[dim]] * index.dim()), x.shape[dim])
        return [f"{w.at(out, place)} = {w.at(x, [*place[:dim], row, *place[dim + 1 :]])};"]

    w.loops(out.shape, body, apart=True)


def _gather(w: Writer, out: Tensor, a: Arguments) -> None:
    x, index, (dim,) = a["self"], a["index"], _dims(a["dim"], a["self"].dim())

    def body(place: list[str]) -> list[str]:
        return [f"{w.at(out, place)} = {w.at(x, [*place[:dim], f'({w.at(index, place)})', *place[dim + 1 :]])};"]

    w.loops(out.shape, body, apart=True)


def _embedding(w: Writer, out: Tensor, a: Arguments) -> None:
    _index(w, out, {"self": a["weight"], "indices": [a["indices"]]})


def _embedding_backward(w: Writer, out: Tensor, a: Arguments) -> None:
    if a["scale_grad_by_freq"]:
        raise Unsupported("an embedding whose gradient is scaled")
    g, indices = a["grad_output"], a["indices"]
    w.fill(out, 0)

    def body(place: list[str]) -> list[str]:
        token = w.at(indices, place[:-1])
        return [f"if ({token} != {a['padding_idx']}) {w.at(out, [f'({token})', place[-1]])} += {w.at(g, place)};"]

    w.loops(g.shape, body)


def _within(w: Writer, out: Tensor, a: Arguments, part: Tensor, source: str = "grad_output") -> None:
    """Nothing but a copy in one part of the result."""
    w.fill(out, a.get("value", 0))
    w.copy(part, a[source])


def _diagonal_backward(w: Writer, out: Tensor, a: Arguments) -> None:
    _within(w, out, a, out.diagonal(a["offset"], a["dim1"], a["dim2"]))


def _select_backward(w: Writer, out: Tensor, a: Arguments) -> None:
    _within(w, out, a, out.select(a["dim"], a["index"]))


def _slice_backward(w: Writer, out: Tensor, a: Arguments) -> None:
    _within(w, out, a, torch.ops.aten.slice.Tensor(out, a["dim"], a["start"], a["end"], a["step"]))


def _wrapped(index: str, length: int) -> str:
    """An index that may count from the end."""
    return f"({index} < 0 ? {index} + {length} : {index})"


def _dims(dim: Any, of: int) -> list[int]:
    if dim is None or dim == []:
        return list(range(of))
    return [d % of for d in ([dim] if isinstance(dim, int) else dim)] if of else []


def _some(a: Arguments, *names: str) -> dict[str, Any]:
    return {name: a[name] for name in names}


OPERATIONS: dict[str, Operation] = {
    **{name: _pointwise(template) for name, template in POINTWISE.items()},
    **{name: _comparison(sign) for name, sign in COMPARISONS.items()},
    **{name: _filled(0) for name in ("zero", "zeros", "zeros_like", "new_zeros")},
    **{name: _filled(1) for name in ("ones", "ones_like", "new_ones")},
    **{name: _filled("fill_value") for name in ("full", "full_like", "new_full")},
    **dict.fromkeys(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"), _nothing),
    **{f"{kind}_{name}": _logic(template) for kind in ("logical", "bitwise") for name, template in LOGIC.items()},
    **dict.fromkeys(("_to_copy", "clone", "copy"), _copied),
    "fill": _filled("value"),
    "scalar_tensor": _filled("s"),
    "add": _added("{self} + {alpha} * {other}"),
    "sub": _added("{self} - {alpha} * {other}"),
    "rsub": _added("{other} - {alpha} * {self}"),
    "clamp": _clamp,
    "pow": _pow,
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
    "mm": _mm,
    "mv": _mv,
    "dot": _dot,
    "bmm": _bmm,
    "addmm": _addmm,
    "cat": _cat,
    "index": _index,
    "index_select": _index_select,
    "gather": _gather,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "diagonal_backward": _diagonal_backward,
    "select_backward": _select_backward,
    "slice_backward": _slice_backward,
}
