"""Training samples that are held out to validate on: for settings and rounds that are not to be chosen on test data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedbraid.core.random import stream
from fedbraid.data.dataset import Array, Partition
from fedbraid.errors import UserError


@dataclass(frozen=True, eq=False)
class Divided:
    """The clients' training samples, and those that are held out."""

    training: Partition
    validation: NDArray[np.int64]  # indices into the training split; none where nothing is held out


def divided(partition: Partition, labels: Array, share: float, seed: int) -> Divided:
    """Every client holds out `share` of its own samples: who holds what stays as the partition says."""
    if not share:
        return Divided(partition, np.zeros(0, dtype=np.int64))
    clients = [np.asarray(own, dtype=np.int64) for own in partition.clients]
    marks = [held_out_by(k, labels[own], share, seed) for k, own in enumerate(clients)]
    left = tuple(own[~marked] for own, marked in zip(clients, marks, strict=True))
    validation = np.concatenate([own[marked] for own, marked in zip(clients, marks, strict=True)])
    if not len(validation):
        raise UserError(
            f"evaluate.validation={share:g} holds out none of the clients' {partition.sizes.sum():,} samples, of which "
            "each client keeps one at least; set a larger share, or fewer clients"
        )
    return Divided(replace(partition, clients=left), validation)


def held_out_by(client: int, labels: Array, share: float, seed: int) -> NDArray[np.bool_]:
    """Marks the samples that a client holds out: every sample with probability `share`, every label in proportion.

    In the order of their labels, at random among equals, one in 1 / share is taken from a random position on. At least
    one stays for training.
    """
    if not share:
        return np.zeros(len(labels), dtype=bool)
    rng, total = stream(seed, "validation", client=client), len(labels)
    in_order = np.lexsort((rng.random(total), labels))
    passed = np.floor(np.arange(total + 1) * share + rng.random())  # how many were taken before each position
    taken = np.diff(passed) > 0
    if taken.all():
        taken[-1] = False
    marked = np.zeros(total, dtype=bool)
    marked[in_order[taken]] = True
    return marked
