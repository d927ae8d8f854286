"""The clients of a round, by the sampling scheme of the configuration."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from fedbraid.config.schema import Sampling
from fedbraid.core import sampling
from fedbraid.core.sampling import Ints
from fedbraid.errors import UserError


def draw_cohort(scheme: Sampling, sizes: Ints, *, seed: int, round: int, rounds: int) -> Ints:
    """Return the positions of a round's clients among those who are there.

    Args:
        scheme: the configuration's table `sampling`.
        sizes: [population] training samples of every client that is there.
        seed: the run's seed.
        round: the round's number, from 0.
        rounds: how many rounds the run has.

    Returns:
        Positions in ascending order, each at most once.
    """
    population, clients = len(sizes), scheme.clients or len(sizes)
    position = min(round, rounds - 1)  # analyses look at the round after the last: those of the last stand in for it
    if scheme.scheme == "listed":
        return read_cohorts(Path(scheme.file).expanduser(), population, clients, rounds)[position]
    if scheme.draws == "feddyn":
        return sampling.feddyn_cohort(population, scheme.rate, seed=scheme.draws_seed, round=round)
    if scheme.draws != "own":
        return _drawn(scheme.draws, population, clients, scheme.draws_seed, rounds)[position]
    if scheme.scheme == "fixed":
        return sampling.fixed(population, clients, seed=seed, round=round)
    if scheme.scheme == "by_size":
        return sampling.by_size(sizes, clients, seed=seed, round=round)
    return sampling.bernoulli(population, scheme.rate, seed=seed, round=round)


def check_cohorts(scheme: Sampling, population: int, rounds: int) -> None:
    """Raise `UserError` unless the file of `scheme=listed` has a cohort for every round."""
    if scheme.scheme == "listed":
        read_cohorts(Path(scheme.file).expanduser(), population, scheme.clients, rounds)


# One generator runs through all rounds, so a round's cohort takes the draws of those before it: all are made at once.
@lru_cache(maxsize=8)
def _drawn(draws: str, population: int, clients: int, seed: int, rounds: int) -> list[Ints]:
    if clients == population:  # released code draws nothing then
        return [np.arange(population)] * rounds
    draw = sampling.python_cohorts if draws == "python" else sampling.numpy_cohorts
    return draw(population, clients, seed=seed, rounds=rounds)


@lru_cache(maxsize=8)
def read_cohorts(path: Path, population: int, clients: int, rounds: int) -> list[Ints]:
    """Read a file with a line for each round: the numbers of its clients, from 0, between blanks or commas.

    Raises:
        UserError: there are fewer lines than rounds, or a line is not `clients` different numbers below `population`.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"sampling.file: {path} cannot be read ({error})") from None
    if len(lines) < rounds:
        raise UserError(
            f"{path} lists the cohorts of {len(lines)} rounds, and the run has {rounds}; set rounds to that"
        )
    return [_cohort(path, k, line, population, clients) for k, line in enumerate(lines[:rounds], 1)]


def _cohort(path: Path, number: int, line: str, population: int, clients: int) -> Ints:
    try:
        ids = sorted(int(cell) for cell in line.replace(",", " ").split())
    except ValueError:
        raise UserError(f"{path}, line {number} must be numbers of clients, not {line.strip()[:40]!r}") from None
    if len(ids) != clients or len(set(ids)) != clients:
        raise UserError(f"{path}, line {number} lists {len(set(ids))} different clients; sampling.clients is {clients}")
    if ids[0] < 0 or ids[-1] >= population:
        raise UserError(f"{path}, line {number} lists client {ids[-1]}; the clients are 0 to {population - 1}")
    return np.array(ids, dtype=np.int64)
