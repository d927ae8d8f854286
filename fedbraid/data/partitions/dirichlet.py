"""Partitions skewed by a Dirichlet distribution: the two families of label skew, and skew of sizes alone."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fedbraid.config.registry import positive, whole
from fedbraid.data.dataset import Array, Partition
from fedbraid.data.partitions.released_draws import feddisco_niid1, released_generator, tail_sizes
from fedbraid.data.partitions.shares import Indices, by_class, dealt, enough, number
from fedbraid.errors import UserError

TRIES = 2000
"""How often `dirichlet` draws before it gives up on the minimum size."""
DRAWS = 10_000_000
"""Numbers drawn before it gives up, so that huge partitions are refused within seconds too."""
BATCH = 50
"""Tries drawn together: numpy's overhead is paid once for all of them."""
LARGEST = 1e100
"""A concentration that is as good as infinite; sums of larger ones overflow."""
ROUND_NUMBERS = tuple(float(f"{digit}e{exponent}") for exponent in range(-3, 4) for digit in (1, 2, 5))
"""The betas that a refusal considers suggesting."""


def dirichlet(
    labels: Array,
    clients: int | None,
    rng: np.random.Generator,
    beta: float = 0.5,
    min_size: int = 10,
    long_tail: float | None = None,
    draws: str | None = None,
    draws_seed: int | None = None,
) -> Partition:
    """Each class is cut over the clients by shares ~ Dir(beta), until every client holds `min_size` samples.

    Clients that already hold their even part of all samples receive nothing more of the classes that follow. This is
    the partition of NIID-Bench, MOON, FedSkip and FedDisco (its NIID-1).

    `long_tail` is FedDisco's ρ where its released code has it, within the partition: class c of C keeps
    int(N / clients ρ^(-c / (C - 1))) of its samples, and a client is full by the N before (the data set's own
    `long_tail`, the paper's formula, counts by what is left). `draws="feddisco"` draws as that code does from NumPy's
    legacy generator with `draws_seed`, sample by sample, whatever the run's seed is.
    """
    clients, beta, min_size = number(clients), positive("beta", beta), whole("min_size", min_size)
    long_tail = 1.0 if long_tail is None else positive("long_tail", long_tail)
    if long_tail < 1:
        raise UserError(f"long_tail is how much rarer the last class is than the first, such as 10, not {long_tail!r}")
    released = released_generator(draws, draws_seed)
    if released is not None:
        enough(labels, clients)
        return Partition(feddisco_niid1(labels, clients, beta, min_size, long_tail, released))
    members = by_class(labels)
    sizes = np.array([len(m) for m in members], dtype=np.int64)
    whole_size = int(sizes.sum())
    if long_tail > 1:
        sizes = tail_sizes(sizes, clients, long_tail)
    total = int(sizes.sum())
    # A refusal tries its suggestions from here, where a second attempt with the same seed will start.
    beginning = deepcopy(rng)
    if clients * min_size > total:
        best = _reach(sizes, clients, beginning, beta) if clients <= total else 0
        raise UserError(
            f"{clients} clients with at least {min_size} samples each need {clients * min_size} samples and there "
            f"are {total}; {_what_works(sizes, clients, beginning, beta, min_size, best)} would work"
        )
    tries = max(1, min(TRIES, DRAWS // (len(sizes) * clients)))
    best = 0
    for counts, smallest in _attempts(sizes, clients, rng, beta, tries, whole_size):
        if smallest.max() >= min_size:
            return Partition(dealt(members, counts[np.argmax(smallest >= min_size)], rng))
        best = max(best, int(smallest.max()))
    raise UserError(
        f"none of {tries} draws at beta={beta:g} gave each of {clients} clients at least {min_size} of the {total} "
        f"samples (the best gave {best}); {_what_works(sizes, clients, beginning, beta, min_size, best)} would work"
    )


def quantity(
    labels: Array, clients: int | None, rng: np.random.Generator, beta: float = 0.5, min_size: int = 10
) -> Partition:
    """Quantity skew (NIID-Bench): shares of all samples ~ Dir(beta), at random whatever their labels.

    That is `dirichlet` with a single class.
    """
    return dirichlet(np.zeros(len(labels), dtype=np.int64), clients, rng, beta, min_size)


def dirichlet_equal(labels: Array, clients: int | None, rng: np.random.Generator, delta: float = 0.3) -> Partition:
    """Clients of equal size, each drawing its classes from a prior of its own ~ Dir(delta), as in FedDyn and ASD.

    Again and again a random client that is not full draws a class from its prior. Classes that have run out are
    masked and the prior is renormalised; a prior with no mass left becomes uniform over the classes that remain. The
    N mod clients samples left at the end stay unused.
    """
    delta = positive("delta", delta)
    members = by_class(labels)
    total, clients = enough(labels, clients)
    left = np.array([len(m) for m in members], dtype=np.int64)
    size = total // clients

    priors = rng.dirichlet(np.full(len(left), min(delta, LARGEST)), clients)
    ladders = np.stack([_ladder(prior, left) for prior in priors])
    counts = np.zeros((len(left), clients), dtype=np.int64)
    hungry, room = list(range(clients)), [size] * clients
    for pick, first, second in rng.random((clients * size, 3)).tolist():
        index = int(pick * len(hungry))
        client = hungry[index]
        label = ladders[client].searchsorted(first, side="right")
        if not left[label]:
            # The ladder is out of date. Rejecting the class and drawing from the ladder of today has the distribution
            # of the masked prior, and saves rebuilding every ladder whenever a class runs out.
            ladders[client] = _ladder(priors[client], left)
            label = ladders[client].searchsorted(second, side="right")
        counts[label, client] += 1
        left[label] -= 1
        room[client] -= 1
        if not room[client]:
            hungry[index] = hungry[-1]
            hungry.pop()
    return Partition(dealt(members, counts, rng))


def _attempts(
    sizes: Indices, clients: int, rng: np.random.Generator, beta: float, tries: int, full: int = 0
) -> Iterator[tuple[Indices, Indices]]:
    """Yield batches of draws: counts [try, class, client], and the size of each try's smallest client.

    A client is full when it holds an even part of `full` samples; 0 = of those there are.
    """
    batch = max(1, min(BATCH, DRAWS // 5 // (len(sizes) * clients)))
    for start in range(0, tries, batch):
        counts = _attempt(sizes, clients, rng, beta, min(batch, tries - start), full or int(sizes.sum()))
        yield counts, counts.sum(axis=1).min(axis=1)


def _attempt(sizes: Indices, clients: int, rng: np.random.Generator, beta: float, tries: int, full: int) -> Indices:
    counts = np.empty((tries, len(sizes), clients), dtype=np.int64)
    holding = np.zeros((tries, clients), dtype=np.int64)
    for label, size in enumerate(sizes):
        shares = _open_shares(holding * clients < full, rng, beta)
        ends = np.cumsum(shares, axis=1)
        # Dividing by the last end, rather than by the sum, makes it exactly 1: no sample strays to a full client.
        counts[:, label] = np.diff(np.floor(ends / ends[:, -1:] * size).astype(np.int64), axis=1, prepend=0)
        holding += counts[:, label]
    return counts


def _open_shares(is_open: NDArray[np.bool_], rng: np.random.Generator, beta: float) -> NDArray[np.float64]:
    """Shares ~ Dir(beta) for every row, cleared where a client is full. Each row has mass, but need not sum to 1."""
    tries, clients = is_open.shape
    shares: NDArray[np.float64] = rng.dirichlet(np.full(clients, min(beta, LARGEST)), tries) * is_open
    # A tiny beta can put all mass on full clients. Drawn again over the others it would fall on one of them.
    empty = np.flatnonzero(shares.sum(axis=1) == 0)
    lucky = np.argmax((1 - rng.random((len(empty), clients))) * is_open[empty], axis=1)
    shares[empty, lucky] = 1
    return shares


def _ladder(prior: NDArray[np.float64], left: Indices) -> NDArray[np.float64]:
    """The cumulative prior over the classes that are left."""
    mass = prior * (left > 0)
    steps = np.cumsum(mass if mass.sum() > 0 else left > 0)
    return np.asarray(steps / steps[-1], dtype=np.float64)


def _reach(sizes: Indices, clients: int, rng: np.random.Generator, beta: float) -> int:
    """The best minimum size among the first draws from `rng`, which stays where it is."""
    _, smallest = next(_attempts(sizes, clients, deepcopy(rng), beta, BATCH))
    return int(smallest.max())


def _what_works(sizes: Indices, clients: int, rng: np.random.Generator, beta: float, min_size: int, best: int) -> str:
    """The nearest parameters that were tried and hold, as `min_size=4 or beta=2`. `best` is the size reached so far."""
    total = int(sizes.sum())
    found = [f"min_size={best}"] if best else []
    if clients * min_size <= total:
        rising = (b for b in ROUND_NUMBERS if b > beta and _reach(sizes, clients, rng, b) >= min_size)
        found += [f"beta={b:g}" for b in islice(rising, 1)]
    fewer = min(clients - 1, total // min_size) if len(found) < 2 else 0
    while fewer and _reach(sizes, fewer, rng, beta) < min_size:
        fewer //= 2
    found += [f"clients={fewer}"] if fewer else []
    return " or ".join(found) or f"clients=1 with min_size={total}"
