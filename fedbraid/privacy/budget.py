"""Privacy budgets: (ε, δ) of a run and of its rounds so far."""

from __future__ import annotations

from math import ceil
from typing import Any

from fedbraid.config.schema import Sampling
from fedbraid.core.chain import Chain
from fedbraid.core.sampling import Drawn
from fedbraid.core.strand import DELTA as DELTA

MOST = 1e6
"""ε beyond which nothing is hidden."""


def spent(noise: float, releases: int, delta: float = DELTA, drawn: Drawn | None = None) -> float:
    """Return ε after so many releases, each with noise of `noise` times its sensitivity.

    Without `drawn` it holds for a client that takes part in every round.
    """
    from fedbraid.privacy import accounting  # with SciPy, which takes its time to load

    return accounting.spent(noise, releases, delta, drawn)


def epsilon_text(epsilon: float | None) -> str:
    """Format ε, rounded up so that it is never understated. None is JSON's infinity."""
    return "no bound" if epsilon is None or epsilon > MOST else f"{ceil(100 * epsilon) / 100:.2f}"


def drawn(sampling: Sampling, population: int, chain: Chain) -> Drawn | None:
    """Return the sampling that amplifies privacy, or None if the run's does not.

    A cohort of a fixed size has another client in place of one that is not drawn. If clients keep state, that other
    client's later updates depend on this, which an account of single rounds does not cover: then None.
    """
    if sampling.late or sampling.scheme in ("by_size", "listed") or sampling.draws != "own":
        return None
    if sampling.scheme == "bernoulli":
        return Drawn(population, "bernoulli", rate=sampling.rate, dropout=sampling.dropout)
    if chain.using("init_client"):
        return None
    return Drawn(population, "fixed", clients=sampling.clients or population, dropout=sampling.dropout)


def report(chain: Chain, rounds: int, drawn: Drawn | None = None) -> dict[str, Any]:
    """Return the privacy of what noisy strands release, of a client's samples or of the client; no other payload's."""
    told = {}
    for strand in chain:
        noise = strand.privacy
        if noise.scale:
            releases = noise.releases(rounds)
            told[strand.name] = {
                "epsilon": spent(noise.scale, releases, noise.delta, drawn if noise.of == "client" else None),
                "delta": noise.delta,
                "noise": noise.scale,
                "releases": releases,
                "of": noise.of,
            }
    return {"privacy": told} if told else {}
