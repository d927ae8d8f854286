"""Who takes part in a round."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedbraid.core.random import stream


def fixed(population: int, clients: int, *, seed: int, round: int) -> NDArray[np.int64]:
    """`clients` of the population without replacement, in order of number."""
    if clients == population:
        return np.arange(population)
    return np.sort(stream(seed, "sampling", round=round).choice(population, clients, replace=False))


def bernoulli(population: int, rate: float, *, seed: int, round: int) -> NDArray[np.int64]:
    """Everybody with probability `rate`; drawn again while nobody comes."""
    rng = stream(seed, "sampling", round=round)
    while True:
        chosen = np.flatnonzero(rng.random(population) < rate)
        if len(chosen):
            return chosen
