"""Clients whose labels are alike: partitions without label skew."""

from __future__ import annotations

import numpy as np

from fedbraid.config.registry import positive
from fedbraid.data.dataset import Array, Partition
from fedbraid.data.partitions.shares import by_class, enough, held


def iid(labels: Array, clients: int | None, rng: np.random.Generator) -> Partition:
    """A random split into parts whose sizes differ by at most one."""
    total, clients = enough(labels, clients)
    owners = np.empty(total, dtype=np.int64)
    owners[rng.permutation(total)] = np.arange(total) % clients
    return Partition(held(owners, clients))


def stratified(labels: Array, clients: int | None, rng: np.random.Generator) -> Partition:
    """Every client holds the same share of each class: counts differ by at most one, in each class and in all.

    With classes of equal size that the clients divide, this is the exact IID split of FedDyn and ASD.
    """
    total, clients = enough(labels, clients)
    one_class_after_the_other = np.concatenate([rng.permutation(own) for own in by_class(labels)])
    owners = np.empty(total, dtype=np.int64)
    # Dealt in turn without starting anew at each class, so that no client collects the remainders.
    owners[one_class_after_the_other] = np.arange(total) % clients
    return Partition(held(owners, clients))


def noise(labels: Array, clients: int | None, rng: np.random.Generator, sigma: float = 0.1) -> Partition:
    """NIID-Bench's feature skew: an IID split whose client k of K (from 1) has noise of level sigma k / K.

    The level is a standard deviation as a share of the inputs' range.
    """
    sigma = positive("sigma", sigma)
    shares = iid(labels, clients, rng).clients
    return Partition(shares, noise=tuple(sigma * (k + 1) / len(shares) for k in range(len(shares))))
