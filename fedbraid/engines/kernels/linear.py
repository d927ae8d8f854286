"""Fully connected layers of a whole stack of clients, each with weights of its own.

A stack's rows lie as far apart as its vectors are long, which is rarely a multiple of what libraries read at a time;
then they take their slowest kernels. These read as well from anywhere. Inputs are [clients, batch, in], weights
[clients, out, in].
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedbraid.engines.kernels.tiles import PROGRAMS, power


def forward(x: Tensor, w: Tensor, b: Tensor | None, fine: bool) -> Tensor:
    y = torch.empty(x.shape[0], x.shape[1], w.shape[1], dtype=x.dtype, device=x.device)
    _product(x, w.transpose(1, 2), y, fine, bias=b)
    return y


def input_gradient(d: Tensor, w: Tensor, fine: bool) -> Tensor:
    back = torch.empty(d.shape[0], d.shape[1], w.shape[2], dtype=d.dtype, device=d.device)
    _product(d, w, back, fine)
    return back


def weight_gradient(d: Tensor, x: Tensor, slope: Tensor, bias: Tensor | None, fine: bool) -> None:
    """Written into `slope` and, where there is one, `bias`."""
    _product(d.transpose(1, 2), x, slope, fine, sums=bias)


def _product(
    a: Tensor, b: Tensor, out: Tensor, fine: bool, bias: Tensor | None = None, sums: Tensor | None = None
) -> None:
    """out = a @ b + bias, and `sums` of a's rows; tensors may lie in any order."""
    from fedbraid.engines.kernels.programs import multiply

    clients, rows, depth = a.shape
    columns = b.shape[2]
    bm, bk = power(rows, 16, 64), power(depth, 16, 64)
    bn = power(columns, 16, 64)
    while bn > 16 and clients * -(-columns // bn) * -(-rows // bm) < PROGRAMS // 2:
        bn //= 2
    if bn == 16 and depth >= 256:
        bk = 128
    multiply[(-(-columns // bn), -(-rows // bm), clients)](
        a, b, out, out if bias is None else bias, out if sums is None else sums, rows, columns, depth,
        *a.stride(), *b.stride(), *out.stride(),
        *((0, 0) if bias is None else bias.stride()), *((0, 0) if sums is None else sums.stride()),
        BM=bm, BN=bn, BK=bk, BIASED=bias is not None, SUMMED=sums is not None, FINE=fine,
        num_warps=4, num_stages=3,
    )  # fmt: skip
