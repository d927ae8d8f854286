"""Conversion from each sample's owner to each client's samples, and the checks that partitions share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedbraid.config.registry import whole
from fedbraid.data.dataset import Array
from fedbraid.data.partitions.ranges import ranges
from fedbraid.errors import UserError

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
    """Deal each class's members out at random: client k receives counts[class, k] of them."""
    clients = counts.shape[1]
    owners = np.full(sum(map(len, members)), NOBODY, dtype=np.int64)
    for indices, wanted in zip(members, counts, strict=True):
        shuffled = rng.permutation(indices)
        owners[shuffled[: wanted.sum()]] = np.repeat(np.arange(clients), wanted)
    return held(owners, clients)


def by_class(labels: Array) -> Shares:
    """The sample indices of each class that occurs; a regression's labels go by their ranges."""
    some(labels)
    kinds = ranges(labels) if labels.dtype.kind == "f" else labels
    classes, which = np.unique(kinds, return_inverse=True)
    return held(which, len(classes))


def number(clients: object) -> int:
    """Return the number of clients, which this partition needs from the user."""
    if clients is None:
        raise UserError("this partition needs a number of clients, such as clients=10")
    return whole("clients", clients)


def some(labels: Array) -> int:
    """Return the number of samples to share out: one at least."""
    if not len(labels):
        raise UserError("there are no training samples to share out; a partition needs at least one")
    return len(labels)


def enough(labels: Array, clients: object) -> tuple[int, int]:
    """The number of samples and of clients, once there is a sample for every client."""
    total, wanted = some(labels), number(clients)
    if wanted > total:
        raise UserError(f"{total} samples cannot feed {wanted} clients; ask for at most {total} clients")
    return total, wanted
