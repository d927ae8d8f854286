"""How pixels are normalised: by the set's channels, or in one of the papers' plainer ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbraid.data.dataset import Array
from fedbraid.data.sets.options import one_of

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
    axes, count = (0, *range(2, x.ndim)), x.size // x.shape[1]
    mean = sum(block.sum(axes) for block in _blocks(x)) / count
    # From the deviations, not from the squares: large values that hardly differ would lose their digits there.
    centre = mean.reshape(-1, *[1] * (x.ndim - 2))
    variance = sum(np.square(block - centre).sum(axes) for block in _blocks(x)) / count
    std = np.where(variance > 0, np.sqrt(variance), 1.0)
    return Normal(tuple(mean.tolist()), tuple(std.tolist()))


def _blocks(x: Array) -> Iterator[NDArray[np.float64]]:
    """Parts that fit into memory, where the whole may not."""
    samples = max(1, AT_ONCE // max(1, x[0].size))
    return (x[at : at + samples].astype(np.float64) for at in range(0, len(x), samples))
