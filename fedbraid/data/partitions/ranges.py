"""A regression's labels in ranges, where classes are wanted: to share samples out by them, and to count them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedbraid.data.dataset import Array

LABEL_RANGES = 10
"""How many there are, each with about as many samples; fewer have any where one number is most of the labels."""


def edges(labels: Array) -> NDArray[np.float64]:
    """Where one range ends and the next begins."""
    return np.quantile(labels, np.arange(1, LABEL_RANGES) / LABEL_RANGES).astype(np.float64)


def ranges(labels: Array, between: Array | None = None) -> NDArray[np.int64]:
    """Which range each label lies in: of these labels' own ranges, unless it is said where others end."""
    between = edges(labels) if between is None else between
    return np.searchsorted(between, labels, side="right").astype(np.int64)
