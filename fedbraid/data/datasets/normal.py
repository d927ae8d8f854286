"""Normalisation of pixels: by the set's channels, or in one of the papers' plainer ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fedbraid.data.common_options import one_of
from fedbraid.data.dataset import Array

WHITE = 255.0
AT_ONCE = 1 << 22
"""Values that are looked at together."""


@dataclass(frozen=True)
class Normal:
    """Mean and standard deviation of every channel, in the units of the pixels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


HALF = Normal((WHITE / 2,), (WHITE / 2,))
UNIT = Normal((0.0,), (WHITE,))


def of_unit(mean: Sequence[float], std: Sequence[float]) -> Normal:
    """Published statistics of pixels between 0 and 1."""
    return Normal(tuple(WHITE * m for m in mean), tuple(WHITE * s for s in std))


def chosen(normalise: str, channels: Normal) -> Normal:
    """`channels` centres and scales every channel, `half` brings pixels to -1..1, `unit` to 0..1."""
    ways = {"channels": channels, "half": HALF, "unit": UNIT}
    return ways[one_of("normalise", normalise, ways)]


def measured(x: Array) -> Normal:
    """The statistics of every channel of [n, channels, ...]; 1 for the deviation of a channel that never changes."""
    flat, count = x.reshape(len(x), x.shape[1], -1), x.size // x.shape[1]
    total, squares = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for channels, block in _blocks(flat):
        total[channels] += block.sum((0, 2))
    mean = total / count
    # From the deviations, not from the squares: large values that hardly differ would lose their digits there.
    for channels, block in _blocks(flat):
        block -= mean[channels, None]
        squares[channels] += np.square(block, out=block).sum((0, 2))
    std = np.where(squares > 0, np.sqrt(squares / count), 1.0)
    return Normal(tuple(mean.tolist()), tuple(std.tolist()))


def _blocks(flat: Array) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Parts of [n, channels, pixels] that fit into memory, where even one sample may not, and the channels of each."""
    count, channels, pixels = flat.shape
    wide = max(1, min(pixels, AT_ONCE))
    deep = min(channels, max(1, AT_ONCE // wide))
    samples = max(1, AT_ONCE // (wide * deep))
    starts = (range(0, count, samples), range(0, channels, deep), range(0, pixels, wide))
    for first, channel, pixel in product(*starts):
        own = slice(channel, channel + deep)
        yield own, flat[first : first + samples, own, pixel : pixel + wide].astype(np.float64)
