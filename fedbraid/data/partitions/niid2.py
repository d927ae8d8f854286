"""FedDisco's NIID-2: clients of the same size, most of them with few classes, some with all."""

from __future__ import annotations

import numpy as np

from fedbraid.config.registry import whole
from fedbraid.data.dataset import Array, Partition
from fedbraid.data.partitions.released_draws import FEDDISCO, feddisco_niid2, released_generator
from fedbraid.data.partitions.shares import by_class, dealt
from fedbraid.errors import UserError

BIASED, UNBIASED = 5, 1
"""The paper's clients under full participation."""


def niid2(
    labels: Array,
    clients: int | None,
    rng: np.random.Generator,
    biased: int | None = None,
    unbiased: int | None = None,
    classes_per_client: int | None = None,
    draws: str | None = None,
) -> Partition:
    """`biased` clients of c classes each, then `unbiased` clients that hold all C classes.

    Biased client i holds classes c i, c i + 1, … c i + c - 1 (mod C). An unbiased client takes one shard of every class
    and a biased one C / c shards of each of its own, so with balanced classes all clients are of the same size. Each
    class is cut into as many equal shards as the most wanted one needs (the number of clients, where c times `biased`
    is a multiple of C, as in the paper); what a class has beyond the shards wanted of it stays unused.

    `classes_per_client` is a fifth of the classes, rounded up, if it is left out: 2 of CIFAR-10's, 20 of CIFAR-100's.
    Of `clients`, `biased` and `unbiased` any two give the third; all but one client are biased if nothing else is said.

    FedDisco's settings: 5 + 1 clients; 50 + 10 or 40 + 10 for partial participation; on AG News 80 % biased clients of
    2 classes, as 4 + 1 or 40 + 10.

    `draws="feddisco"` cuts the samples sorted by label as its released code does, where no seed plays a part.
    """
    members = by_class(labels)
    biased, unbiased = _numbers(clients, biased, unbiased)
    total, smallest = len(members), min(map(len, members))
    each = -(-total // 5) if classes_per_client is None else whole("classes_per_client", classes_per_client)
    wanted = _wanted(biased, unbiased, each, total)
    if each > total or wanted > smallest * each:
        raise UserError(
            f"{biased} biased clients of {each} classes and {unbiased} unbiased ones cannot share {total} classes, "
            f"one of which has {smallest} samples; {_what_works(biased, unbiased, each, total, smallest)} "
            "would work"
        )
    if released_generator(draws, None) is not None:
        if total % each or biased % (total // each):
            raise UserError(
                f"draws={FEDDISCO} cuts classes for whole groups of biased clients; {biased} with {each} of {total} "
                "classes each are none, as 5 with a fifth of the classes are"
            )
        return Partition(feddisco_niid2(labels, biased, unbiased, each))
    shard = np.array([len(own) * each // wanted for own in members], dtype=np.int64)
    counts = np.zeros((total, biased + unbiased), dtype=np.int64)
    for client in range(biased):
        own = (client * each + np.arange(each)) % total
        counts[own, client] = shard[own] * total // each
    counts[:, biased:] = shard[:, None]
    return Partition(dealt(members, counts, rng))


def _wanted(biased: int, unbiased: int, each: int, classes: int) -> int:
    """Return the number of shards that the most wanted class is cut into, times `each`: C / c need not be whole."""
    most = -(-biased * each // classes)  # biased clients that hold the same class
    return unbiased * each + most * classes


def _what_works(biased: int, unbiased: int, each: int, classes: int, smallest: int) -> str:
    """The nearest numbers: no more classes than there are, fewer biased clients, and only then none of them."""
    better = [f"classes_per_client={classes}"] if each > classes else []
    each = min(each, classes)
    if _wanted(biased, unbiased, each, classes) > smallest * each:
        biased = (smallest - unbiased) * each // classes * classes // each if unbiased < smallest else 0
        unbiased = unbiased if biased else smallest
        better.append(f"clients={biased + unbiased}, biased={biased} and unbiased={unbiased}")
    return " with ".join(better)


def _numbers(clients: int | None, biased: int | None, unbiased: int | None) -> tuple[int, int]:
    """Return the numbers of biased and unbiased clients; any two of the arguments give the third."""
    clients = None if clients is None else whole("clients", clients)
    biased = None if biased is None else whole("biased", biased, 0)
    unbiased = None if unbiased is None else whole("unbiased", unbiased, 0)
    if unbiased is None:
        unbiased = UNBIASED if clients is None or biased is None else clients - biased
    if biased is None:
        biased = BIASED if clients is None else clients - unbiased
    if min(biased, unbiased) < 0 or biased + unbiased != (biased + unbiased if clients is None else clients):
        raise UserError(
            f"clients={clients} do not consist of biased={biased} and unbiased={unbiased}; "
            "give two of the three, or numbers that add up"
        )
    if not biased + unbiased:
        raise UserError(f"there must be a client; biased={BIASED} with unbiased={UNBIASED} are the paper's")
    return biased, unbiased
