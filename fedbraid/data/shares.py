"""From "who owns each sample" to "which samples each client holds"."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedbraid.data.dataset import Array

Indices = NDArray[np.int64]
Shares = tuple[Indices, ...]

NOBODY = -1
"""The owner of a sample that no client holds."""


def held(owners: Array, clients: int) -> Shares:
    """The sorted sample indices of every client, given each sample's owner."""
    order = np.argsort(owners, kind="stable")
    unowned = int(np.count_nonzero(owners == NOBODY))
    sizes = np.bincount(owners[owners != NOBODY], minlength=clients)
    return tuple(np.split(order[unowned:].astype(np.int64), np.cumsum(sizes)[:-1]))


def dealt(members: Shares, counts: Indices, rng: np.random.Generator) -> Shares:
    """Deals each class's members out at random: client k receives counts[class, k] of them."""
    clients = counts.shape[1]
    owners = np.full(sum(map(len, members)), NOBODY, dtype=np.int64)
    for indices, wanted in zip(members, counts, strict=True):
        shuffled = rng.permutation(indices)
        owners[shuffled[: wanted.sum()]] = np.repeat(np.arange(clients), wanted)
    return held(owners, clients)
