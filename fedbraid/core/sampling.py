"""Who takes part in a round, who is there yet, and who is lost on the way."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import expm1, log1p
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedbraid.core.random import stream
from fedbraid.errors import UserError

Ints = NDArray[np.int64]


def fixed(population: int, clients: int, *, seed: int, round: int) -> Ints:
    """`clients` of the population (or all, if they are fewer) without replacement, in order of number."""
    if clients >= population:
        return np.arange(population)
    return np.sort(stream(seed, "sampling", round=round).choice(population, clients, replace=False))


def by_size(sizes: Ints, clients: int, *, seed: int, round: int) -> Ints:
    """`clients` (or all, if they are fewer) one after the other, each with a chance by its size among those left."""
    if clients >= len(sizes):
        return np.arange(len(sizes))
    rng = stream(seed, "sampling", round=round)
    return np.sort(rng.choice(len(sizes), clients, replace=False, p=sizes / sizes.sum()))


def bernoulli(population: int, rate: float, *, seed: int, round: int) -> Ints:
    """Everybody with probability `rate`, given that somebody comes.

    Drawing again while nobody comes would have the same law, and would not end at tiny rates. So the first who comes is
    drawn from its own law, and those after it come or not.
    """
    rng = stream(seed, "sampling", round=round)
    if rate >= 1:
        return np.arange(population)
    nobody = population * np.log1p(-rate)  # the logarithm of its probability
    first = min(int(np.log1p(rng.random() * np.expm1(nobody)) / np.log1p(-rate)), population - 1)
    comes = rng.random(population) < rate
    comes[:first], comes[first] = False, True
    return np.flatnonzero(comes)


def coming(population: int, rate: float) -> float:
    """How many of `bernoulli` come on average."""
    return population * rate / -float(np.expm1(population * np.log1p(-rate))) if rate < 1 else float(population)


def python_cohorts(population: int, clients: int, *, seed: int, rounds: int) -> list[Ints]:
    """Draw the cohorts of all rounds as `random.sample` does, one after the other, after `random.seed(seed)`.

    FedDisco's and FedSkip's released code draws so.
    """
    rng = random.Random(seed)
    return [np.sort(np.array(rng.sample(range(population), clients))) for _ in range(rounds)]


def numpy_cohorts(population: int, clients: int, *, seed: int, rounds: int) -> list[Ints]:
    """Draw the cohorts of all rounds as `np.random.choice` does without replacement, after `np.random.seed(seed)`."""
    rng = np.random.RandomState(seed)
    return [np.sort(rng.choice(population, clients, replace=False)) for _ in range(rounds)]


def feddyn_cohort(population: int, rate: float, *, seed: int, round: int) -> Ints:
    """Draw a cohort as FedDyn's and ASD's released code does: everybody with probability `rate`.

    The legacy generator is seeded anew with round + seed in every round, and with one more while nobody comes.
    """
    while True:
        comes = np.flatnonzero(np.random.RandomState(round + seed).uniform(size=population) <= rate)
        if len(comes):
            return comes
        seed += 1


def arrivals(population: int, late: float, first: int, last: int, *, seed: int) -> Ints:
    """[population] the round from which each client is there. A share `late` of them comes in rounds first..last.

    Rounds count from 0 here, so that those who are there from the beginning have 0.
    """
    rounds = np.zeros(population, dtype=np.int64)
    if not int(late * population):
        return rounds
    rng = stream(seed, "arrivals")
    who = rng.permutation(population)[: int(late * population)]
    rounds[who] = rng.integers(first, last + 1, len(who))
    return rounds


def arriving(clients: int, dropout: float, *, seed: int, round: int) -> Ints:
    """Places in a cohort of `clients` whose updates arrive; each is lost with probability `dropout`."""
    if not dropout:
        return np.arange(clients)
    return np.flatnonzero(stream(seed, "dropout", round=round).random(clients) >= dropout)


@dataclass(frozen=True)
class Drawn:
    """How a round's clients are drawn, by chances that nobody else knows."""

    population: int
    scheme: Literal["everybody", "fixed", "bernoulli"] = "everybody"
    clients: int = 0  # fixed: so many of the population, without replacement
    rate: float = 1.0  # bernoulli: each with this probability, given that somebody comes
    dropout: float = 0.0  # each is lost with this probability, whatever its data

    def __post_init__(self) -> None:
        if self.population < 1 or (self.scheme == "fixed" and not 1 <= self.clients <= self.population):
            raise UserError(f"a round has between 1 and all of the clients, not {self.clients} of {self.population}")
        if not 0 < self.rate <= 1 or not 0 <= self.dropout < 1:
            raise UserError("a rate lies in (0, 1], and the chance to be lost in [0, 1)")

    @property
    def without_others(self) -> float:
        """The chance that no other client comes back: then that there is a step at all tells of the one."""
        n, q = self.population, self.rate
        if self.scheme == "fixed":
            return self.dropout**self.clients
        if q == 1:
            return self.dropout ** (n - 1)
        # logarithms of the chances that none of the others comes back, and that nobody comes
        others, nobody = (n - 1) * log1p(-q * (1 - self.dropout)), n * log1p(-q)
        return min(1.0, (expm1(others) - expm1(nobody)) / -expm1(nobody))
