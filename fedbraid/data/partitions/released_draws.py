"""Splits from a paper's own draws: the arithmetic and the random numbers of its released code.

A paper's number is often that of one split. NumPy's legacy generator gives the same numbers in every version, so a
split that was drawn from a fixed seed can be drawn again, sample by sample.
"""

from __future__ import annotations

import numpy as np

from fedbraid.config.registry import whole
from fedbraid.data.dataset import Array
from fedbraid.data.partitions.ranges import ranges
from fedbraid.data.partitions.shares import Indices, Shares
from fedbraid.errors import UserError

FEDDISCO = "feddisco"
TRIES = 2000
"""Draws before the minimum size is given up."""


def released_generator(draws: object, seed: object) -> np.random.RandomState | None:
    """Return the generator of released code, seeded as it seeds it; None for draws of our own.

    Args:
        draws: "feddisco" or None.
        seed: the seed of the released run, below 2**32; None = 0.
    """
    if draws not in (None, FEDDISCO):
        raise UserError(f"draws must be {FEDDISCO}, or left out, not {draws!r}")
    if draws is None:
        if seed is not None:
            raise UserError(f"draws_seed={seed} is for draws={FEDDISCO}; set that too, or leave it out")
        return None
    seed = 0 if seed is None else whole("draws_seed", seed, 0)
    if seed >= 2**32:
        raise UserError(f"draws_seed must be below 2**32, as NumPy's legacy generator takes it, not {seed}")
    return np.random.RandomState(seed)


def tail_sizes(sizes: Indices, clients: int, long_tail: float) -> Indices:
    """Return how many samples FedDisco's long tail leaves of each class: int(N / K ρ^(-c / (C - 1))) of class c.

    K is the number of clients: the largest class is whole where there are as many clients as classes.
    """
    steps = np.arange(len(sizes)) / max(1, len(sizes) - 1)
    kept = (sizes.sum() / clients * long_tail**-steps).astype(np.int64)
    left: Indices = np.minimum(sizes, kept)
    return left


def feddisco_niid1(
    labels: Array, clients: int, beta: float, min_size: int, long_tail: float, rng: np.random.RandomState
) -> Shares:
    """Draw FedDisco's NIID-1, which FedSkip's code and MOON's draw as well.

    One class after the other is shuffled and cut by shares ~ Dir(beta), of which clients that hold N / clients samples
    or more have none; all again until the smallest client has `min_size`. With `long_tail` above 1 the shuffled class
    is cut short first, and N stays the number of all samples.

    Returns:
        The sorted indices of every client; the shuffle of each client's list, which follows in the released code, does
        not change who holds what.
    """
    kinds = ranges(labels) if labels.dtype.kind == "f" else labels
    members = [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]
    sizes = np.array([len(own) for own in members], dtype=np.int64)
    kept = tail_sizes(sizes, clients, long_tail) if long_tail > 1 else sizes
    total = len(kinds)
    for _ in range(TRIES):
        held: list[list[Indices]] = [[] for _ in range(clients)]
        holding = np.zeros(clients, dtype=np.int64)
        for own, size in zip(members, kept, strict=True):
            shuffled = own.copy()
            rng.shuffle(shuffled)
            shares = rng.dirichlet(np.repeat(beta, clients)) * (holding < total / clients)
            if not shares.any():  # all mass on full clients: the released code divides by zero here
                holding[:] = -1
                break
            shares = shares / shares.sum()
            cuts = (np.cumsum(shares) * size).astype(np.int64)[:-1]
            pieces = np.split(shuffled[:size], cuts)
            for client, piece in enumerate(pieces):
                held[client].append(piece)
            holding += [len(piece) for piece in pieces]
        if holding.min() >= min_size:
            return tuple(np.sort(np.concatenate(own)) for own in held)
    raise UserError(
        f"none of {TRIES} of the released code's draws gave each of {clients} clients at least {min_size} samples; a "
        "smaller min_size or fewer clients would work"
    )


def feddisco_niid2(labels: Array, biased: int, unbiased: int, each: int) -> Shares:
    """Return FedDisco's NIID-2, in which nothing is drawn: consecutive pieces of the samples sorted by label.

    Every class has N // C samples here, and a shard is a class over the number of clients. Biased client i holds `each`
    classes, of each of them C / each consecutive shards; unbiased clients hold the next shard of every class. The
    released code sorts by a method that is not stable, so which samples of a class are in a shard depends on the
    machine there; here they are in the order of the data set.
    """
    order = np.argsort(labels, kind="stable").astype(np.int64)
    classes = len(np.unique(labels))
    per_class = len(labels) // classes
    per_client = classes // each  # shards of a class that a biased client holds, and biased clients that share all
    shard = int(len(labels) / classes / (biased + unbiased))

    def piece(label: int, start: int, shards: int) -> Indices:
        first = label * per_class + start * shard
        return order[first : first + shards * shard]

    shares = []
    for i in range(biased):
        own = [(each * i + c) % classes for c in range(each)]
        shares.append(np.concatenate([piece(label, i // per_client * per_client, per_client) for label in own]))
    for i in range(unbiased):
        start = per_client * (biased // per_client) + i
        shares.append(np.concatenate([piece(label, start, 1) for label in range(classes)]))
    return tuple(np.sort(share) for share in shares)
