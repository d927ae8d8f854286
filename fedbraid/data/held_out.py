"""A test split for sources that have none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedbraid.data.dataset import Array


def held_out(groups: Array, share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Marks `share` of every group's samples, rounded, at random; at least one of each group stays for training.

    Groups are users, or classes where there are no users, so that each of them is trained on and tested alike.
    """
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    shuffled = np.lexsort((rng.random(len(group)), group))  # group by group, at random within each
    first = np.cumsum(sizes) - sizes
    marked = np.minimum(np.rint(share * sizes), sizes - 1)
    chosen = np.arange(len(group)) - np.repeat(first, sizes) < np.repeat(marked, sizes)
    is_test = np.empty(len(group), dtype=bool)
    is_test[shuffled] = chosen
    return is_test
