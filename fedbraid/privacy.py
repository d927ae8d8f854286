"""What Gaussian noise buys: (ε, δ) of differential privacy, from Opacus's accountant (extra `privacy`)."""

from __future__ import annotations

import logging
from typing import Any

from fedbraid.core.chain import Chain

log = logging.getLogger("fedbraid")

DELTA = 1e-5


def spent(noise: float, releases: int, delta: float = DELTA) -> float | None:
    """ε after so many releases, each with noise of `noise` times its sensitivity; None without the accountant.

    By Rényi divergence, without amplification by sampling: it holds for a client that takes part in every round.
    """
    try:
        from opacus.accountants.analysis import rdp
    except ImportError:
        log.warning("epsilon is not computed: it needs Opacus; pip install 'fedbraid[privacy]'")
        return None
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 512))
    loss = rdp.compute_rdp(q=1.0, noise_multiplier=noise, steps=releases, orders=orders)
    epsilon, _ = rdp.get_privacy_spent(orders=orders, rdp=loss, delta=delta)
    return float(epsilon)


def report(chain: Chain, rounds: int) -> dict[str, Any]:
    """The privacy of what noisy strands release about a client's samples; other payloads are not covered."""
    told = {}
    for strand in chain.using("releases"):
        noise, times = strand.releases(rounds)
        if noise:
            told[strand.name] = {"epsilon": spent(noise, times), "delta": DELTA, "noise": noise, "releases": times}
    return {"privacy": told} if told else {}
