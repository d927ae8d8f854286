"""A regression's labels in ranges, where classes are wanted: to share samples out by them, and to count them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedbraid.data.dataset import Array

LABEL_RANGES = 10
"""How many there are, each with about as many samples; fewer have any where one number is most of the labels."""


def edges(labels: Array) -> NDArray[np.float64]:
    """Return the bounds between ranges that hold about as many labels each."""
    return np.quantile(labels, np.arange(1, LABEL_RANGES) / LABEL_RANGES).astype(np.float64)


def ranges(labels: Array, between: Array | None = None) -> NDArray[np.int64]:
    """Return the range that each label lies in: of these labels' own ranges, or of those with the bounds `between`."""
    between = edges(labels) if between is None else between
    return np.searchsorted(between, labels, side="right").astype(np.int64)
