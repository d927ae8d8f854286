"""Convolutions of few channels to few outputs, such as LeNet's first: launches of the Triton programs."""

from __future__ import annotations

import torch
from torch import Tensor

from fedbraid.engines.kernels.convolution_spec import Convolution, Pair
from fedbraid.engines.kernels.few import check_size
from fedbraid.engines.kernels.tiles import PROGRAMS, breadth, split_rows

TAPS = 25
OUTS = 8
CHANNELS = 4


def is_small(w: Tensor) -> bool:
    """Return whether a window with all its outputs fits into a thread's registers."""
    _, outs, channels, height, width = w.shape
    return outs <= OUTS and channels <= CHANNELS and height * width <= TAPS


def product(x: Tensor, w: Tensor, bias: Tensor | None, size: Pair, kind: Convolution) -> tuple[Tensor, Tensor]:
    """Convolve `x` with weights [clients, outs, channels, height, width]; the result is channels-last."""
    from fedbraid.engines.kernels.small_programs import convolve

    check_size(x)
    clients, outs, channels, height, width = w.shape
    w = w if w[0].is_contiguous() else w.contiguous()
    windows = x.shape[1] * size[0] * size[1]
    y = x.new_empty(clients, x.shape[1], *size, outs)
    chosen = torch.empty(y.shape if kind.pooled else (clients, 0), dtype=torch.int8, device=x.device)
    bm = 128
    convolve[(-(-windows // bm), clients)](
        x, w, y if bias is None else bias, y, chosen, windows, *x.stride(),
        w.stride(0), *((0, 0) if bias is None else bias.stride()),
        N=outs, C=channels, KH=height, KW=width, OH=size[0], OW=size[1], STRIDE=kind.stride, BM=bm,
        POOL=kind.pooled, BIASED=bias is not None, FINE=kind.fine, num_warps=4, num_stages=1,
    )  # fmt: skip
    return y.permute(0, 1, 4, 2, 3), chosen


def weight_gradient(
    d: Tensor, chosen: Tensor, x: Tensor, w_gradient: Tensor, biased: bool, kind: Convolution
) -> Tensor:
    """Return partial sums of the weight gradient, as `few.weight_gradient` does."""
    from fedbraid.engines.kernels import small_programs

    check_size(d)
    clients, outs, channels, height, width = w_gradient.shape
    across = breadth(channels * height * width + biased)
    windows = d.shape[1] * d.shape[3] * d.shape[4]
    bm, bn = 32, min(outs, 2)  # as fast as any on an H200, and easy on registers
    blocks = channels, -(-outs // bn)
    splits, share = split_rows(windows, bm, blocks[0] * blocks[1] * clients, 6 * PROGRAMS)
    parts = torch.empty(splits, clients, outs, across, dtype=torch.float32, device=w_gradient.device)
    small_programs.weight_gradient[(*blocks, clients * splits)](
        x, d, chosen, parts, windows, across, share, *x.stride(), *d.stride(),
        N=outs, C=channels, KH=height, KW=width, OH=d.shape[3], OW=d.shape[4], STRIDE=kind.stride,
        BM=bm, BN=bn, SPLITS=splits, POOL=kind.pooled, ONES=biased, FINE=kind.fine, num_warps=1, num_stages=1,
    )  # fmt: skip
    return parts
