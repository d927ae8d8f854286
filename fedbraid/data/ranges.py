"""A regression's labels in ranges, where classes are wanted: to share samples out by them, and to count them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedbraid.data.dataset import Array

LABEL_RANGES = 10
"""How many there are, each with about as many samples; fewer have any where one number is most of the labels."""


def ranges(labels: Array) -> NDArray[np.int64]:
    """Which range each label lies in."""
    edges = np.quantile(labels, np.arange(1, LABEL_RANGES) / LABEL_RANGES)
    return np.searchsorted(edges, labels, side="right").astype(np.int64)
