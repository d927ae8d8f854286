"""Convolutions of a whole stack of clients, each with weights of its own: programs and how they are started.

Tensors are [clients, batch, channels, height, width], weights [clients, out, in, height, width].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

Pair = tuple[int, int]


@dataclass(frozen=True)
class Kind:
    """Which convolution it is."""

    stride: int = 1
    padding: int = 0
    pooled: bool = False  # followed by 2x2 max pooling and ReLU

    def size(self, x: Tensor, w: Tensor) -> Pair:
        """The sides of what comes out."""
        down, right = ((x.shape[side] + 2 * self.padding - w.shape[side]) // self.stride + 1 for side in (-2, -1))
        return (down // 2, right // 2) if self.pooled else (down, right)


@dataclass(frozen=True)
class Halves:
    """Numbers as the sum of two bfloat16."""

    high: Tensor
    low: Tensor

    @staticmethod
    def of(x: Tensor) -> Halves:
        from fedbraid.engines.kernels.programs import split

        x = x.contiguous()
        halves = Halves.like(x)
        split[(-(-x.numel() // 2048),)](x, halves.high, halves.low, x.numel(), BLOCK=2048)
        return halves

    @staticmethod
    def like(x: Tensor) -> Halves:
        return Halves.empty(*x.shape, device=x.device)

    @staticmethod
    def empty(*shape: int, device: torch.device) -> Halves:
        return Halves(*torch.empty(2, *shape, dtype=torch.bfloat16, device=device))


@dataclass(frozen=True)
class Patches:
    """The inputs of a convolution, ready for its products."""

    numbers: Halves  # written out as [clients, rows, depth], or images [clients, batch, rows, columns, channels]

    @property
    def gathered(self) -> bool:
        return self.numbers.high.dim() == 3

    @property
    def channels(self) -> int:
        return self.numbers.high.shape[-1]

    @property
    def strides(self) -> tuple[int, ...]:
        """Between clients, samples, rows and columns."""
        return (self.numbers.high.stride(0), 0, 0, 0) if self.gathered else self.numbers.high.stride()[:4]


def patches(x: Tensor, kernel: Pair, size: Pair, stride: int, pooled: bool) -> Patches:
    from fedbraid.engines.kernels.programs import gather

    clients, batch, channels = x.shape[:3]
    if channels % 16 == 0:
        return Patches(Halves.of(x.permute(0, 1, 3, 4, 2)))
    rows, depth = batch * size[0] * size[1] * (4 if pooled else 1), kernel[0] * kernel[1] * channels
    width = -(-depth // 16) * 16
    written = Halves.empty(clients, rows, width, device=x.device)
    bk = _power(width, 16, 1 << 30)
    bm = max(1, 4096 // bk)
    gather[(-(-rows // bm), clients)](
        x, written.high, written.low, rows, depth, width, channels, kernel[1], *size, *x.stride(),
        STRIDE=stride, BM=bm, BK=bk, POOL=pooled,
    )  # fmt: skip
    return Patches(written)


def forward(x: Tensor, w: Tensor, b: Tensor, kind: Kind) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The outputs; which corner of its window each pooled one came from; the patches."""
    size = kind.size(x, w)
    x = pad(x, (kind.padding,) * 4) if kind.padding else x
    found = patches(x, (w.shape[3], w.shape[4]), size, kind.stride, kind.pooled)
    y, chosen = product(found, w.permute(0, 1, 3, 4, 2), b, x.shape[1], size, kind.stride, kind.pooled)
    return y, chosen, found.numbers.high, found.numbers.low


def gradients(
    d: Tensor, w: Tensor, chosen: Tensor, high: Tensor, low: Tensor, size: Pair, kind: Kind, wanted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the inputs (where wanted), the weights and the biases."""
    found = Patches(Halves(high, low))
    d = _channels_last(d)
    around = w.shape[3] - 1 - kind.padding
    whole = size[0] + w.shape[3] - 1, size[1] + w.shape[4] - 1
    images = None
    if wanted or not found.gathered:
        images = unpooled(d, chosen, around, whole) if kind.pooled else spread(d, kind.stride, around, whole)
    back = input_gradient(images, w, size) if wanted and images is not None else d.new_zeros(d.shape[0], 0)
    if found.gathered:
        lines = expanded(d, chosen) if kind.pooled else Halves.of(d.flatten(1, 3))
        slope = weight_gradient(lines, found, w, (d.shape[1], d.shape[2], d.shape[3]), kind)
    else:
        assert images is not None
        inside = Halves(*(t[:, :, around:, around:] for t in (images.high, images.low)))
        sides = (d.shape[2], d.shape[3]) if not kind.pooled else (2 * d.shape[2], 2 * d.shape[3])
        slope = weight_gradient(inside, found, w, (d.shape[1], *sides), kind)
    through = torch.where(chosen < 4, d, 0.0) if kind.pooled else d
    return back, slope, through.sum((1, 2, 3))


def input_gradient(images: Halves, w: Tensor, size: Pair) -> Tensor:
    """A convolution of the outputs' gradient, padded, with the weights turned around."""
    found = Patches(images)
    if found.channels % 16:
        whole = (images.high.float() + images.low.float()).permute(0, 1, 4, 2, 3)
        found = patches(whole, (w.shape[3], w.shape[4]), size, 1, False)
    return product(found, w.flip(3, 4).permute(0, 2, 3, 4, 1), None, images.high.shape[1], size, 1, False)[0]


def spread(d: Tensor, stride: int, around: int, whole: Pair) -> Halves:
    """`d` (channels-last) with zeros between its pixels (for a stride) and around them."""
    clients, batch, height, width, outs = d.shape
    out = d.new_zeros(clients, batch, *whole, outs)
    down, right = (slice(around, around + (side - 1) * stride + 1, stride) for side in (height, width))
    out[:, :, down, right] = d
    return Halves.of(out)


def unpooled(d: Tensor, chosen: Tensor, around: int, whole: Pair) -> Halves:
    """`d` (channels-last) at the corners that were chosen, with zeros around the image."""
    from fedbraid.engines.kernels.programs import unpool

    clients, batch, height, width, outs = d.shape
    out = Halves.empty(clients, batch, *whole, outs, device=d.device)
    bn = _power(outs, 16, 64)
    unpool[(clients * batch * whole[0], -(-outs // bn))](
        d, chosen, out.high, out.low, height, width, outs, around, *whole,
        BW=_power(whole[1], 16, 1 << 30), BN=bn,
    )  # fmt: skip
    return out


def expanded(d: Tensor, chosen: Tensor) -> Halves:
    """`d` (channels-last) at the corners that were chosen, in the order of written patches."""
    from fedbraid.engines.kernels.programs import expand

    clients, batch, height, width, outs = d.shape
    windows = clients * batch * height * width
    out = Halves.empty(clients, batch * height * width * 4, outs, device=d.device)
    bn = _power(outs, 16, 64)
    block = 1024 // bn
    expand[(-(-windows // block), -(-outs // bn))](d, chosen, out.high, out.low, windows, outs, BLOCK=block, BN=bn)
    return out


def product(
    found: Patches, w: Tensor, bias: Tensor | None, batch: int, size: Pair, stride: int, pooled: bool
) -> tuple[Tensor, Tensor]:
    """Patches times `w` [clients, outs, rows, columns, channels]; the result lies channels-last."""
    from fedbraid.engines.kernels.programs import convolve

    clients, outs, kernel_columns = w.shape[0], w.shape[1], w.shape[3]
    flat = w.reshape(clients, outs, -1)
    if found.gathered:
        flat = pad(flat, (0, found.channels - flat.shape[2]))
        kernel_columns = 1
    weights = Halves.of(flat)
    rows, depth = batch * size[0] * size[1] * (4 if pooled else 1), flat.shape[2]
    y = torch.empty(clients, batch, *size, outs, dtype=torch.float32, device=w.device)
    chosen = torch.empty(y.shape if pooled else (clients, 0), dtype=torch.int8, device=w.device)
    bn = _power(outs, 16, 128)
    # What was fastest on an H200: small tiles of long steps where patches are gathered on the way.
    bm, most = (128, 32) if found.gathered else (64, 64)
    bk = min(found.channels & -found.channels, most)
    convolve[(-(-rows // bm), -(-outs // bn), clients)](
        found.numbers.high, found.numbers.low, weights.high, weights.low,
        weights.high if bias is None else bias.contiguous(), y, chosen,
        rows, outs, depth, found.channels, kernel_columns, *size, *found.strides,
        STRIDE=stride, BM=bm, BN=bn, BK=bk, POOL=pooled, GATHERED=found.gathered, BIASED=bias is not None,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return y.permute(0, 1, 4, 2, 3), chosen


def weight_gradient(d: Halves, found: Patches, w: Tensor, shape: tuple[int, int, int], kind: Kind) -> Tensor:
    """`d` times patches, summed over rows; `shape` is the batch and the sides of the convolution's outputs."""
    from fedbraid.engines.kernels import programs

    clients, outs, channels, rows, columns = w.shape
    pixels = d.high.shape[1] if found.gathered else shape[0] * shape[1] * shape[2]
    depth = found.channels if found.gathered else rows * columns * channels
    bk = min(found.channels & -found.channels, 64)
    bn, bm = _power(outs, 16, 64), 64
    tiles = depth // bk * -(-outs // bn) * clients
    splits = max(1, min(-(-pixels // (4 * bm)), PROGRAMS // tiles))
    share = -(-pixels // (splits * bm)) * bm
    out = torch.empty(splits, clients, outs, depth, dtype=torch.float32, device=w.device)
    strides = (d.high.stride(0), 0, 0, 0) if found.gathered else d.high.stride()[:4]
    programs.weight_gradient[(depth // bk, -(-outs // bn), clients * splits)](
        found.numbers.high, found.numbers.low, d.high, d.low, out,
        pixels, outs, depth, found.channels, 1 if found.gathered else columns, shape[1], shape[2], share,
        *found.strides, *(s * (kind.stride if i > 1 else 1) for i, s in enumerate(strides)),
        STRIDE=kind.stride, BK=bk, BN=bn, BM=bm, SPLITS=splits, GATHERED=found.gathered,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    total = out.sum(0) if splits > 1 else out[0]
    slope = total[..., : rows * columns * channels].reshape(clients, outs, rows, columns, channels)
    return slope.permute(0, 1, 4, 2, 3)


PROGRAMS = 528
"""Programs that keep a large GPU busy; sums over many rows are split into about so many, in a fixed order."""


def _channels_last(d: Tensor) -> Tensor:
    return d.permute(0, 1, 3, 4, 2).contiguous()


def _power(number: int, least: int, most: int) -> int:
    return min(most, max(least, 1 << (number - 1).bit_length()))
