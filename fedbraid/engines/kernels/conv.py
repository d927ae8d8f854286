"""Convolutions of a stack of clients with weights of their own: launches of the Triton programs.

Tensors are [clients, batch, channels, height, width], weights [clients, out, in, height, width].
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedbraid.engines.kernels import few, small
from fedbraid.engines.kernels.convolution_spec import Convolution, Pair, SplitNumbers
from fedbraid.engines.kernels.tiles import breadth, power, split_rows


def forward(x: Tensor, w: Tensor, b: Tensor | None, kind: Convolution) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, the chosen corner of each pooled window, and the prepared inputs (empty if none were needed)."""
    size, around = kind.size(x, w), kind.padding
    if few.is_few(x.shape[2]):
        ready = few.padded(x, around)
        if small.is_small(w):
            y, chosen = small.product(ready, w, b, size, kind)
        else:
            y, chosen = few.product(ready, ordered(w, kind.fine), b, size, (w.shape[3], w.shape[4]), kind)
        return y, chosen, ready if around else x.new_empty(len(x), 0)
    found = images(x, (x.shape[3] + 2 * around, x.shape[4] + 2 * around), around, 1, kind.fine)
    y, chosen = product(found, ordered(w, kind.fine), b, size, w.shape[4], kind)
    return y, chosen, found.numbers


def gradients(
    d: Tensor,
    w: Tensor,
    chosen: Tensor,
    ready: Tensor,
    size: Pair,
    kind: Convolution,
    wanted: bool,
    w_gradient: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Return the gradient of the inputs (empty unless `wanted`); write those of weights and biases in place.

    `ready` are the prepared inputs of `forward`, or the inputs themselves. `slope` (the shape of `w`) and `bias`
    [clients, out] receive the gradients.
    """
    around = w.shape[3] - 1 - kind.padding
    whole = size[0] + w.shape[3] - 1, size[1] + w.shape[4] - 1
    back, few_channels = d.new_empty(d.shape[0], 0), few.is_few(w.shape[2])
    if wanted or not few_channels:
        slopes = images(d, whole, around, kind.stride, kind.fine, chosen if kind.pooled else None)
        if wanted:
            back = input_gradient(slopes, w, size, kind.fine)
    if few_channels:
        programs = small if small.is_small(w) else few
        parts = programs.weight_gradient(d, chosen, ready, w_gradient, bias is not None, kind)
    else:
        scale = 2 if kind.pooled else 1
        sides = d.shape[1], d.shape[3] * scale, d.shape[4] * scale
        lines = SplitNumbers(slopes.numbers[:, :, :, around:, around:])
        parts = weight_gradient(lines, SplitNumbers(ready), w_gradient, bias is not None, sides, kind.stride)
    combine(parts, w_gradient, bias)
    return back


def input_gradient(slopes: SplitNumbers, w: Tensor, size: Pair, fine: bool) -> Tensor:
    """Return the gradient of the inputs: the padded gradient of the outputs, convolved with the flipped weights."""
    plain, turned, kernel = Convolution(fine=fine), ordered(w, fine, turned=True), (w.shape[3], w.shape[4])
    if few.is_few(slopes.channels):
        whole = slopes.numbers.float().sum(1).permute(0, 1, 4, 2, 3)
        return few.product(whole, turned, None, size, kernel, plain)[0]
    return product(slopes, turned, None, size, kernel[1], plain)[0]


def images(x: Tensor, whole: Pair, around: int, stride: int, fine: bool, chosen: Tensor | None = None) -> SplitNumbers:
    """Return `x` channels-last with zeros between its pixels (for a stride) and around them, of size `whole`.

    With `chosen`, each pixel is the value of a 2x2 window and is written to its chosen corner.
    """
    from fedbraid.engines.kernels import programs

    clients, batch, channels, height, width = x.shape
    made = SplitNumbers.empty(clients, fine, batch, *whole, channels, device=x.device)
    pixels, bn = batch * whole[0] * whole[1], power(channels, 16, 64)
    bm = 2048 // bn
    programs.images[(-(-pixels // bm), -(-channels // bn), clients)](
        x, made.high if chosen is None else chosen, made.high, made.low,
        pixels, channels, height, width, *whole, around, made.strides[0], *x.stride(),
        STRIDE=stride if chosen is None else 2, BM=bm, BN=bn, POOL=chosen is not None, FINE=fine,
    )  # fmt: skip
    return made


def ordered(w: Tensor, fine: bool, turned: bool = False) -> SplitNumbers:
    """Return weights as [outs, depth] with zero padding; `turned` flips them and swaps inputs and outputs."""
    from fedbraid.engines.kernels.programs import weights

    taps = (w.transpose(1, 2) if turned else w).flatten(3)  # a view: weights lie in one piece within their vector
    clients, outs, channels, count = taps.shape
    depth = channels * count
    across = breadth(depth)
    made = SplitNumbers.empty(clients, fine, outs, across, device=w.device)
    block = 1024
    weights[(-(-outs * across // block), clients)](
        taps, made.high, made.low, outs, depth, across, channels, count, made.strides[0], *taps.stride(),
        TURNED=turned, BLOCK=block, FINE=fine,
    )  # fmt: skip
    return made


def product(
    found: SplitNumbers, weights: SplitNumbers, bias: Tensor | None, size: Pair, columns: int, kind: Convolution
) -> tuple[Tensor, Tensor]:
    """Multiply patches of images and weights, for kernels `columns` wide; the result is channels-last."""
    from fedbraid.engines.kernels.programs import convolve

    clients, _, outs, depth = weights.numbers.shape
    batch = found.numbers.shape[2]
    lines, device = batch * size[0] * size[1] * (4 if kind.pooled else 1), weights.numbers.device
    y = torch.empty(clients, batch, *size, outs, dtype=torch.float32, device=device)
    chosen = torch.empty(y.shape if kind.pooled else (clients, 0), dtype=torch.int8, device=device)
    bn = power(outs, 16, 128)
    bm, bk = 64, min(found.channels & -found.channels, 64)  # what was fastest on an H200
    convolve[(-(-lines // bm), -(-outs // bn), clients)](
        found.high, found.low, weights.high, weights.low, y if bias is None else bias, y, chosen,
        lines, outs, depth, found.channels, columns, *size,
        *found.strides, weights.strides[0], *((0, 0) if bias is None else bias.stride()),
        STRIDE=kind.stride, BM=bm, BN=bn, BK=bk,
        POOL=kind.pooled, BIASED=bias is not None, FINE=found.fine,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return y.permute(0, 1, 4, 2, 3), chosen


def weight_gradient(
    d: SplitNumbers, found: SplitNumbers, w_gradient: Tensor, biased: bool, sides: tuple[int, int, int], stride: int
) -> Tensor:
    """Return `d` times patches in partial sums [splits, clients, outs, breadth], which `combine` adds.

    `sides` are the batch and the sides of the convolution's outputs.
    """
    from fedbraid.engines.kernels import programs

    clients, outs, channels, height, width = w_gradient.shape
    pixels, depth = sides[0] * sides[1] * sides[2], channels * height * width
    bk = min(channels & -channels, 64)
    bn, bm = power(outs, 16, 64), 64
    across = breadth(depth + biased)
    blocks = -(-across // bk), -(-outs // bn)
    splits, share = split_rows(pixels, bm, blocks[0] * blocks[1] * clients)
    parts = torch.empty(splits, clients, outs, across, dtype=torch.float32, device=w_gradient.device)
    client, sample, *inner = d.strides
    programs.weight_gradient[(*blocks, clients * splits)](
        found.high, found.low, d.high, d.low, parts,
        pixels, outs, depth, across, channels, width, sides[1], sides[2], share,
        *found.strides, client, sample, *(s * stride for s in inner),
        STRIDE=stride, BK=bk, BN=bn, BM=bm, SPLITS=splits, SUMMED=biased, FINE=found.fine,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return parts


def combine(parts: Tensor, w_gradient: Tensor, bias: Tensor | None) -> None:
    """Add the partial sums of a weight gradient in a fixed order: atomic additions would make results vary."""
    from fedbraid.engines.kernels import programs

    clients, outs, channels, height, width = w_gradient.shape
    splits, _, _, across = parts.shape
    biased, taps, block = bias is not None, height * width, 512
    programs.combine[(-(-outs * (channels * taps + biased) // block), clients)](
        parts, w_gradient, w_gradient if bias is None else bias, outs, channels, taps, across, splits,
        w_gradient.stride(0), 0 if bias is None else bias.stride(0), BLOCK=block, BIASED=biased,
    )  # fmt: skip
