"""Classes in groups: the many, the middling and the few."""

from __future__ import annotations

import numpy as np

from fedbraid.data.dataset import Array


def class_groups(counts: Array) -> dict[str, list[int]]:
    """Head, middle and tail: classes by falling number of training samples, in three parts as even as can be.

    The first parts take what does not divide, so ten classes are 4, 3 and 3, as in FedDisco.
    """
    order = np.argsort(-np.asarray(counts), kind="stable")
    return {
        name: part.tolist() for name, part in zip(("head", "middle", "tail"), np.array_split(order, 3), strict=True)
    }
