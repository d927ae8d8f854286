"""C templates for products of matrices and vectors: BLAS for large ones, loops for small ones."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbraid.engines.codegen.c_code import TYPES, Arguments, Operation, Unsupported, Writer

LARGE = 4096
"""Multiplications from which a product goes to BLAS. Below, the call costs more than the arithmetic."""


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
    """Write `out += a @ b`."""
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
    # BLAS is column-major: a row-major matrix is its transpose there, so out.T = b.T @ a.T is what is computed.
    w.lines += [
        f"{{ const int m = {n}, n = {m}, k = {k}, lda = {right[1]}, ldb = {left[1]}, ldc = {n}; const {kind} one = 1;",
        f'{name}("{right[0]}", "{left[0]}", &m, &n, &k, &one, &{w.at(b, ["0", "0"])}, &lda, '
        f"&{w.at(a, ['0', '0'])}, &ldb, &one, &{w.at(out, ['0', '0'])}, &ldc); }}",
    ]


def _for_blas(matrix: Tensor) -> tuple[str, int] | None:
    """Return a matrix as BLAS takes it: "N" or "T" and the leading dimension; None if neither stride is 1."""
    (rows, columns), (down, right) = matrix.shape, matrix.stride()
    if (right == 1 or columns == 1) and (down >= columns or rows == 1):
        return "N", max(down if rows > 1 else columns, 1)
    if (down == 1 or rows == 1) and (right >= rows or columns == 1):
        return "T", max(right if columns > 1 else rows, 1)
    return None


PRODUCTS: dict[str, Operation] = {"mm": _mm, "mv": _mv, "dot": _dot, "bmm": _bmm, "addmm": _addmm}
