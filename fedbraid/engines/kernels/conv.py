"""Convolutions of a whole stack of clients, each with weights of its own: programs and how they are started.

Tensors are [clients, batch, channels, height, width], weights [clients, out, in, height, width].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.engines.kernels.tiles import PROGRAMS, power

Pair = tuple[int, int]


@dataclass(frozen=True)
class Kind:
    """Which convolution it is."""

    stride: int = 1
    padding: int = 0
    pooled: bool = False  # followed by 2x2 max pooling and ReLU
    fine: bool = True  # by three products of bfloat16, which is nearly float32; else by one

    def size(self, x: Tensor, w: Tensor) -> Pair:
        """The sides of what comes out."""
        down, right = ((x.shape[side] + 2 * self.padding - w.shape[side]) // self.stride + 1 for side in (-2, -1))
        return (down // 2, right // 2) if self.pooled else (down, right)


@dataclass(frozen=True)
class Halves:
    """Numbers as the sum of two bfloat16, or as one: [clients, 2 or 1, ...]."""

    numbers: Tensor

    @staticmethod
    def empty(clients: int, fine: bool, *shape: int, device: torch.device) -> Halves:
        return Halves(torch.empty(clients, 1 + fine, *shape, dtype=torch.bfloat16, device=device))

    @property
    def fine(self) -> bool:
        return self.numbers.shape[1] == 2

    @property
    def high(self) -> Tensor:
        return self.numbers[:, 0]

    @property
    def low(self) -> Tensor:
        """Not to be read where numbers are not fine."""
        return self.numbers[:, -1]

    @property
    def strides(self) -> tuple[int, ...]:
        """Between clients, then of images between samples, rows and columns."""
        _, _, *inner = self.numbers.stride()
        return (self.numbers.stride(0), *(inner[:3] if len(inner) == 4 else (0, 0, 0)))

    @property
    def gathered(self) -> bool:
        """Whether these are rows of patches written out, [rows, depth], or images [batch, rows, columns, channels]."""
        return self.numbers.dim() == 4

    @property
    def channels(self) -> int:
        return self.numbers.shape[-1]


def forward(x: Tensor, w: Tensor, b: Tensor | None, kind: Kind) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs; which corner of its window each pooled one came from; the patches."""
    size = kind.size(x, w)
    found = patches(x, (w.shape[3], w.shape[4]), size, kind, b is not None)
    y, chosen = product(found, ordered(w, found, turned=False), b, x.shape[1], size, w.shape[4], kind)
    return y, chosen, found.numbers


def gradients(
    d: Tensor,
    w: Tensor,
    chosen: Tensor,
    numbers: Tensor,
    size: Pair,
    kind: Kind,
    wanted: bool,
    slope: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Of the inputs (where wanted); those of the weights and, where there are any, the biases are written."""
    found = Halves(numbers)
    around = w.shape[3] - 1 - kind.padding
    whole = size[0] + w.shape[3] - 1, size[1] + w.shape[4] - 1
    back = d.new_empty(d.shape[0], 0)
    if wanted or not found.gathered:
        slopes = images(d, whole, around, kind.stride, kind.fine, chosen if kind.pooled else None)
        if wanted:
            back = input_gradient(slopes, w, size, kind.fine)
        lines = Halves(slopes.numbers[:, :, :, around:, around:])
    if found.gathered:
        lines = expanded(d, chosen, kind.fine) if kind.pooled else rows(d, kind.fine)
    scale = 2 if kind.pooled else 1
    sides = d.shape[1], d.shape[3] * scale, d.shape[4] * scale
    weight_gradient(lines, found, slope, bias, sides, kind.stride)
    return back


def input_gradient(slopes: Halves, w: Tensor, size: Pair, fine: bool) -> Tensor:
    """A convolution of the outputs' gradient, padded, with the weights turned around."""
    plain, batch = Kind(fine=fine), slopes.numbers.shape[2]
    if slopes.channels % 16:
        whole = slopes.numbers.float().sum(1).permute(0, 1, 4, 2, 3)
        slopes = patches(whole, (w.shape[3], w.shape[4]), size, plain, False)
    return product(slopes, ordered(w, slopes, turned=True), None, batch, size, w.shape[4], plain)[0]


def patches(x: Tensor, kernel: Pair, size: Pair, kind: Kind, ones: bool) -> Halves:
    """The inputs ready for a product: images where channels are many, else written out (with a one for the bias)."""
    from fedbraid.engines.kernels.programs import gather

    clients, batch, channels, height, width = x.shape
    if channels % 16 == 0:
        return images(x, (height + 2 * kind.padding, width + 2 * kind.padding), kind.padding, 1, kind.fine)
    lines, depth = batch * size[0] * size[1] * (4 if kind.pooled else 1), kernel[0] * kernel[1] * channels
    breadth = _breadth(depth, ones)
    made = Halves.empty(clients, kind.fine, lines, breadth, device=x.device)
    bk = power(breadth, 16, 1 << 30)
    bm = max(1, 4096 // bk)
    gather[(-(-lines // bm), clients)](
        x, made.high, made.low, lines, depth, breadth, channels, kernel[1], *size, height, width, kind.padding,
        made.strides[0], *x.stride(),
        STRIDE=kind.stride, BM=bm, BK=bk, POOL=kind.pooled, PADDED=kind.padding > 0, ONES=ones, FINE=kind.fine,
    )  # fmt: skip
    return made


def images(x: Tensor, whole: Pair, around: int, stride: int, fine: bool, chosen: Tensor | None = None) -> Halves:
    """`x` channels-last with zeros between its pixels (for a stride) and around them, `whole` in all.

    Where corners were chosen, each pixel stands for a 2x2 window and goes to its corner.
    """
    from fedbraid.engines.kernels import programs

    clients, batch, channels, height, width = x.shape
    made = Halves.empty(clients, fine, batch, *whole, channels, device=x.device)
    pixels, bn = batch * whole[0] * whole[1], power(channels, 16, 64)
    bm = 2048 // bn
    programs.images[(-(-pixels // bm), -(-channels // bn), clients)](
        x, made.high if chosen is None else chosen, made.high, made.low,
        pixels, channels, height, width, *whole, around, made.strides[0], *x.stride(),
        STRIDE=stride if chosen is None else 2, BM=bm, BN=bn, POOL=chosen is not None, FINE=fine,
    )  # fmt: skip
    return made


def rows(d: Tensor, fine: bool) -> Halves:
    """The gradient of a convolution's outputs, in the order of written patches."""
    return Halves(images(d, (d.shape[3], d.shape[4]), 0, 1, fine).numbers.flatten(2, 4))


def expanded(d: Tensor, chosen: Tensor, fine: bool) -> Halves:
    """The same of pooled outputs: the corners that were not chosen have none."""
    from fedbraid.engines.kernels.programs import expand

    clients, batch, outs, height, width = d.shape
    windows, bn = batch * height * width, power(outs, 16, 64)
    made = Halves.empty(clients, fine, windows * 4, outs, device=d.device)
    bm = 1024 // bn
    expand[(-(-windows // bm), -(-outs // bn), clients)](
        d, chosen, made.high, made.low, windows, outs, height, width, made.strides[0], *d.stride(),
        BM=bm, BN=bn, FINE=fine,
    )  # fmt: skip
    return made


def ordered(w: Tensor, found: Halves, turned: bool) -> Halves:
    """The weights as the product with `found` wants them: [outs, depth]; turned, what came in goes out."""
    from fedbraid.engines.kernels.programs import weights

    taps = (w.transpose(1, 2) if turned else w).flatten(3)  # a view: weights lie in one piece within their vector
    clients, outs, channels, count = taps.shape
    depth = channels * count
    breadth = found.channels if found.gathered else depth
    made = Halves.empty(clients, found.fine, outs, breadth, device=w.device)
    block = 1024
    weights[(-(-outs * breadth // block), clients)](
        taps, made.high, made.low, outs, depth, breadth, channels, count, made.strides[0], *taps.stride(),
        TURNED=turned, BLOCK=block, FINE=found.fine,
    )  # fmt: skip
    return made


def product(
    found: Halves, weights: Halves, bias: Tensor | None, batch: int, size: Pair, columns: int, kind: Kind
) -> tuple[Tensor, Tensor]:
    """Patches times weights, of kernels so many columns wide; the result lies channels-last."""
    from fedbraid.engines.kernels.programs import convolve

    clients, _, outs, depth = weights.numbers.shape
    lines, device = batch * size[0] * size[1] * (4 if kind.pooled else 1), weights.numbers.device
    y = torch.empty(clients, batch, *size, outs, dtype=torch.float32, device=device)
    chosen = torch.empty(y.shape if kind.pooled else (clients, 0), dtype=torch.int8, device=device)
    bn = power(outs, 16, 128)
    # What was fastest on an H200: small tiles of long steps where patches are gathered on the way.
    bm, most = (128, 32) if found.gathered else (64, 64)
    bk = min(found.channels & -found.channels, most)
    convolve[(-(-lines // bm), -(-outs // bn), clients)](
        found.high, found.low, weights.high, weights.low, y if bias is None else bias, y, chosen,
        lines, outs, depth, found.channels, 1 if found.gathered else columns, *size,
        *found.strides, weights.strides[0], *((0, 0) if bias is None else bias.stride()),
        STRIDE=kind.stride, BM=bm, BN=bn, BK=bk,
        POOL=kind.pooled, GATHERED=found.gathered, BIASED=bias is not None, FINE=found.fine,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return y.permute(0, 1, 4, 2, 3), chosen


def weight_gradient(
    d: Halves, found: Halves, slope: Tensor, bias: Tensor | None, sides: tuple[int, int, int], stride: int
) -> None:
    """`d` times patches, summed over rows; `sides` are the batch and the sides of the convolution's outputs."""
    from fedbraid.engines.kernels import programs

    clients, outs, channels, height, width = slope.shape
    biased = bias is not None
    pixels, taps = sides[0] * sides[1] * sides[2], height * width
    breadth = _breadth(channels * taps, biased)
    depth = breadth if found.gathered else channels * taps
    bk = min(found.channels & -found.channels, 64)
    bn, bm = power(outs, 16, 64), 64
    blocks = -(-breadth // bk), -(-outs // bn)
    # Sums over many rows are split into as many programs as keep the GPU busy, and added in a fixed order.
    splits = max(1, min(-(-pixels // (4 * bm)), PROGRAMS // (blocks[0] * blocks[1] * clients)))
    share = -(-pixels // (splits * bm)) * bm
    parts = torch.empty(splits, clients, outs, breadth, dtype=torch.float32, device=slope.device)
    client, sample, *inner = d.strides
    programs.weight_gradient[(*blocks, clients * splits)](
        found.high, found.low, d.high, d.low, parts,
        pixels, outs, depth, breadth, found.channels, 1 if found.gathered else width, sides[1], sides[2], share,
        *found.strides, client, sample, *(s * stride for s in inner),
        STRIDE=stride, BK=bk, BN=bn, BM=bm, SPLITS=splits,
        GATHERED=found.gathered, SUMMED=biased and not found.gathered, FINE=found.fine,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    block = 512
    programs.combine[(-(-outs * (channels * taps + biased) // block), clients)](
        parts, slope, slope if bias is None else bias, outs, channels, taps, breadth, splits,
        slope.stride(0), 0 if bias is None else bias.stride(0), BLOCK=block, BIASED=biased,
    )  # fmt: skip


def _breadth(depth: int, bias: bool) -> int:
    """Of rows of `depth` numbers, and one for the bias: tensor cores take sixteen at a time."""
    return -(-(depth + bias) // 16) * 16
