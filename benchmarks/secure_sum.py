"""What a secure sum costs: seconds of one client's and of the server's work at each step, and bytes.

python benchmarks/secure_sum.py [parameters]
"""

import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from fedbraid.deploy.secagg.aggregator import Aggregator
from fedbraid.deploy.secagg.fixed_point import FixedPoint
from fedbraid.deploy.secagg.masks import add_mask
from fedbraid.deploy.secagg.participant import Participant
from fedbraid.deploy.secagg.protocol import Session

STEPS = ("advert", "share", "encode", "mask", "reveal", "decode", "server")
"""Of one client, but for the server's, which are all of its own together."""

CASES = [(3, 0), (10, 0), (10, 1), (10, 3), (50, 0), (50, 5)]
"""Clients, and how many of them are lost after their shares."""


def timed(times: list[float], call: Callable[[], Any]) -> Any:
    began = perf_counter()
    result = call()
    times.append(perf_counter() - began)
    return result


def one(clients: int, lost: int, model: np.ndarray) -> tuple[dict[str, float], dict[str, int]]:
    """Median seconds by step, and bytes that one client sends (up) and receives (down) besides the masked vector."""
    session, numbers = Session("benchmark", 0, "train"), FixedPoint(1000.0, clients)
    cohort = {f"client-{k}": Participant(session, f"client-{k}") for k in range(clients)}
    server, times = Aggregator(session, len(model)), {step: [] for step in STEPS}
    adverts = {name: timed(times["advert"], c.advert) for name, c in cohort.items()}
    roster = timed(times["server"], lambda: server.roster(adverts))
    shares = {name: timed(times["share"], lambda c=c: c.share(roster)) for name, c in cohort.items()}
    delivered = timed(times["server"], lambda: server.deliver(shares))
    left = list(cohort)[lost:]
    encoded = timed(times["encode"], lambda: numbers.encode(model, 1 / clients))
    masked = {n: timed(times["mask"], lambda n=n: cohort[n].mask(delivered[n], encoded)) for n in left}
    told = timed(times["server"], lambda: server.survivors(masked))
    revealed = {n: timed(times["reveal"], lambda n=n: cohort[n].reveal(told)) for n in left}
    total = timed(times["server"], lambda: server.total(revealed))
    timed(times["decode"], lambda: numbers.decode(total))
    assert np.array_equal(total, encoded * np.uint64(len(left)))
    seconds = {step: sum(t) if step == "server" else median(t) for step, t in times.items()}
    name = left[0]
    up = len(adverts[name]) + len(shares[name]) + len(revealed[name])
    return seconds, {"up": up, "down": len(roster) + len(delivered[name]) + len(told)}


def main(parameters: int) -> None:
    model = np.random.default_rng(0).normal(size=parameters).astype(np.float32)
    vector, times = np.zeros(parameters, np.uint64), []
    for _ in range(15):
        timed(times, lambda: add_mask(vector, bytes(32)))
    mask = median(times)
    print(f"{parameters:,} parameters; one mask takes {mask * 1e3:.1f} ms, {vector.nbytes / mask / 1e6:.0f} MB/s")
    print("clients lost " + "".join(f"{step:>9}" for step in STEPS) + "   ms;  kB up, down besides the vector")
    for clients, lost in CASES:
        rounds = [one(clients, lost, model) for _ in range(3)]
        middle = {step: median(seconds[step] for seconds, _ in rounds) * 1e3 for step in STEPS}
        sent = rounds[0][1]
        print(
            f"{clients:>7} {lost:>4} "
            + "".join(f"{middle[step]:>9.1f}" for step in STEPS)
            + f"      {sent['up'] / 1e3:.1f}, {sent['down'] / 1e3:.1f}"
        )


if __name__ == "__main__":
    main(int(float(sys.argv[1])) if len(sys.argv) > 1 else 10**6)
