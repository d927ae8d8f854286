"""Convolutions of inputs with few channels, which need padding only: launches of the Triton programs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedbraid.engines.kernels.convolution_spec import Convolution, Pair, SplitNumbers
from fedbraid.engines.kernels.tiles import PROGRAMS, breadth, power, split_rows
from fedbraid.errors import UserError


def is_few(channels: int) -> bool:
    """Return whether the channels of a pixel are no multiple of 16, the depth of a tensor core's product."""
    return channels % 16 != 0


def padded(x: Tensor, around: int) -> Tensor:
    return pad(x, (around, around, around, around)) if around else x


def product(
    x: Tensor, weights: SplitNumbers, bias: Tensor | None, size: Pair, kernel: Pair, kind: Convolution
) -> tuple[Tensor, Tensor]:
    """Multiply patches of `x` and weights [outs, breadth]; the result is channels-last."""
    from fedbraid.engines.kernels.few_programs import convolve

    check_size(x)
    clients, batch, channels = x.shape[:3]
    outs, row = weights.numbers.shape[2:]
    lines = batch * size[0] * size[1] * (4 if kind.pooled else 1)
    y = x.new_empty(clients, batch, *size, outs)
    chosen = torch.empty(y.shape if kind.pooled else (clients, 0), dtype=torch.int8, device=x.device)
    bm, bn = 128, power(outs, 16, 128)
    convolve[(-(-lines // bm), -(-outs // bn), clients)](
        x, weights.high, weights.low, y if bias is None else bias, y, chosen, lines, outs, *x.stride(),
        weights.strides[0], *((0, 0) if bias is None else bias.stride()),
        KD=channels * kernel[0] * kernel[1], KP=row, C=channels, KW=kernel[1], OH=size[0], OW=size[1],
        STRIDE=kind.stride, BM=bm, BN=bn, BK=min(row & -row, 32),
        POOL=kind.pooled, BIASED=bias is not None, FINE=weights.fine, num_warps=4,
    )  # fmt: skip
    return y.permute(0, 1, 4, 2, 3), chosen


def weight_gradient(
    d: Tensor, chosen: Tensor, x: Tensor, w_gradient: Tensor, biased: bool, kind: Convolution
) -> Tensor:
    """Return `d` times patches of `x` in partial sums [splits, clients, outs, breadth]."""
    from fedbraid.engines.kernels import few_programs

    check_size(d)
    clients, outs, channels, height, width = w_gradient.shape
    depth = channels * height * width
    across = breadth(depth + biased)
    lines = d.shape[1] * d.shape[3] * d.shape[4]
    # What was fastest on an H200: nothing is fetched ahead here, so many small programs take turns at waiting.
    bk = power(across, 16, 128) if across <= 128 else 64
    bn, bm = power(outs, 16, 64), 16 if outs <= 16 else 32
    blocks = -(-across // bk), -(-outs // bn)
    splits, share = split_rows(lines, bm, blocks[0] * blocks[1] * clients, 4 * PROGRAMS)
    parts = torch.empty(splits, clients, outs, across, dtype=torch.float32, device=w_gradient.device)
    few_programs.weight_gradient[(*blocks, clients * splits)](
        x, d, chosen, parts, lines, outs, across, share, *x.stride(), *d.stride(),
        KD=depth, C=channels, KW=width, OH=d.shape[3], OW=d.shape[4],
        STRIDE=kind.stride, BK=bk, BN=bn, BM=bm, SPLITS=splits,
        POOL=kind.pooled, ONES=biased, FINE=kind.fine, num_warps=4, num_stages=1,
    )  # fmt: skip
    return parts


def check_size(x: Tensor) -> None:
    """Raise UserError if a client's tensor has offsets beyond 32 bits, which the programs use to save registers."""
    if sum((n - 1) * stride for n, stride in zip(x.shape[1:], x.stride()[1:], strict=True)) >= 2**31:
        raise UserError(f"batches of shape {tuple(x.shape[1:])} are too large for the stack; make local.batch smaller")
