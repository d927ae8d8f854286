"""C templates for parts of tensors: concatenation, indexing, and their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbraid.engines.codegen.c_code import Arguments, Operation, Unsupported, Writer, axes_of


def _cat(w: Writer, out: Tensor, a: Arguments) -> None:
    (dim,), at = axes_of(a["dim"], out.dim()), 0
    for part in a["tensors"]:
        if part.numel():
            w.copy(out.narrow(dim, at, part.shape[dim]), part)
            at += part.shape[dim]


def _stack(w: Writer, out: Tensor, a: Arguments) -> None:
    (dim,) = axes_of(a["dim"], out.dim())
    for at, part in enumerate(a["tensors"]):
        w.copy(out.select(dim, at), part)


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
    x, index, (dim,) = a["self"], a["index"], axes_of(a["dim"], a["self"].dim())

    def body(place: list[str]) -> list[str]:
        row = _wrapped(w.at(index, [place[dim]] * index.dim()), x.shape[dim])
        return [f"{w.at(out, place)} = {w.at(x, [*place[:dim], row, *place[dim + 1 :]])};"]

    w.loops(out.shape, body, apart=True)


def _gather(w: Writer, out: Tensor, a: Arguments) -> None:
    x, index, (dim,) = a["self"], a["index"], axes_of(a["dim"], a["self"].dim())

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
    """Fill the result with a constant and copy into one part of it."""
    w.fill(out, a.get("value", 0))
    w.copy(part, a[source])


def _diagonal_backward(w: Writer, out: Tensor, a: Arguments) -> None:
    _within(w, out, a, out.diagonal(a["offset"], a["dim1"], a["dim2"]))


def _select_backward(w: Writer, out: Tensor, a: Arguments) -> None:
    _within(w, out, a, out.select(a["dim"], a["index"]))


def _slice_backward(w: Writer, out: Tensor, a: Arguments) -> None:
    _within(w, out, a, torch.ops.aten.slice.Tensor(out, a["dim"], a["start"], a["end"], a["step"]))


def _wrapped(index: str, length: int) -> str:
    """Return a C index expression in which negative indices count from the end."""
    return f"({index} < 0 ? {index} + {length} : {index})"


PARTS: dict[str, Operation] = {
    "cat": _cat,
    "stack": _stack,
    "index": _index,
    "index_select": _index_select,
    "gather": _gather,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "diagonal_backward": _diagonal_backward,
    "select_backward": _select_backward,
    "slice_backward": _slice_backward,
}
