"""Clients that hold a few classes each: by number of classes, or by shards of the sorted samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedbraid.config.registry import whole
from fedbraid.data.dataset import Array, Partition
from fedbraid.data.partitions.shares import Indices, by_class, dealt, held, number
from fedbraid.errors import UserError


def classes(labels: Array, clients: int | None, rng: np.random.Generator, classes_per_client: int = 2) -> Partition:
    """Every client holds exactly `classes_per_client` classes; those who hold a class share it evenly (#C=k).

    One client after the other takes the classes that the fewest hold so far, at random among equals. So the numbers of
    holders differ by at most one, and every class is held if the clients have room for all of them. (NIID-Bench gives
    client i class i and draws the others freely: there a class may have many holders, or none.)
    """
    members = by_class(labels)
    clients, each = number(clients), whole("classes_per_client", classes_per_client)
    most, smallest = min(each, len(members)), min(map(len, members))
    room = smallest * len(members) // most  # clients, when as many hold the smallest class as it has samples
    if each > most or clients > room:
        better = [f"clients={room}"] if clients > room else []
        better += [f"classes_per_client={most}"] if each > most else []
        raise UserError(
            f"{clients} clients cannot hold {each} of {len(members)} classes each, one of which has {smallest} "
            f"samples; {' with '.join(better)} would work"
        )
    sizes = [len(own) for own in members]
    holds = _holding(len(members), clients, each, rng)
    counts = np.stack([_evenly(size, who, rng) for size, who in zip(sizes, holds, strict=True)])
    return Partition(dealt(members, counts, rng))


def shards(labels: Array, clients: int | None, rng: np.random.Generator, shards_per_client: int = 2) -> Partition:
    """The samples sorted by label, cut into shards that are dealt at random, as in the paper of FedAvg.

    Shards differ in size by at most one sample.
    """
    one_class_after_the_other = np.concatenate([rng.permutation(own) for own in by_class(labels)])
    clients, each, total = number(clients), whole("shards_per_client", shards_per_client), len(labels)
    if clients * each > total:
        fewer = f"clients={total // each}" if each <= total else f"clients=1 with shards_per_client={total}"
        raise UserError(f"{total} samples cannot be cut into {clients} x {each} shards; {fewer} would work")
    receivers = rng.permutation(np.repeat(np.arange(clients), each))
    # Shard j begins at floor(j total / shards), so sample i lies in the last shard that begins at or before it.
    starts = np.arange(clients * each) * total // (clients * each)
    owners = np.empty(total, dtype=np.int64)
    owners[one_class_after_the_other] = np.repeat(receivers, np.diff(starts, append=total))
    return Partition(held(owners, clients))


def _holding(classes: int, clients: int, each: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw the classes that clients hold, [classes, clients]."""
    holds = np.zeros((classes, clients), dtype=bool)
    holders = np.zeros(classes, dtype=np.int64)
    for client in range(clients):
        chosen = np.lexsort((rng.random(classes), holders))[:each]
        holds[chosen, client] = True
        holders[chosen] += 1
    return holds


def _evenly(total: int, holds: NDArray[np.bool_], rng: np.random.Generator) -> Indices:
    """Return every client's count of a class: none, or an even part; the clients with one sample more are drawn."""
    counts = np.zeros(len(holds), dtype=np.int64)
    holders = rng.permutation(np.flatnonzero(holds))
    if len(holders):
        counts[holders] = total // len(holders)
        counts[holders[: total % len(holders)]] += 1
    return counts
