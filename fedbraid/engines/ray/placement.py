"""Placement of clients on workers, balanced by the clients' cost and the workers' measured speed."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedbraid.core.plan import LocalWork

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

BETTER = 0.8
"""Clients move if a round would then take at most this share of its time …"""
WORTH = 2.0
"""… and if the remaining rounds save at least this many times the duration of the move."""


def costs(sizes: NDArray[np.integer], work: LocalWork) -> Floats:
    """Return [clients]: samples that each trains on in a round."""
    if work.steps:
        return np.asarray(work.steps * np.minimum(work.batch or sizes, sizes), dtype=np.float64)
    return np.asarray(work.epochs * sizes, dtype=np.float64)


def assign_clients(cost: Floats, speed: Floats) -> Ints:
    """Return [clients]: a worker for each, greedily by decreasing cost to the worker that would finish first."""
    home = np.zeros(len(cost), dtype=np.int64)
    load = np.zeros(len(speed))
    done = [(0.0, 1.0 / s, w) for w, s in enumerate(speed.tolist())]
    heapq.heapify(done)
    for client in np.argsort(-cost, kind="stable").tolist():
        _, slowness, worker = done[0]
        home[client] = worker
        load[worker] += cost[client]
        heapq.heapreplace(done, (float(load[worker] * slowness), slowness, worker))
    return home


def loads(home: Ints, cost: Floats, workers: int) -> Floats:
    """Return [workers]: the total cost of each worker's clients."""
    return np.bincount(home, cost, minlength=workers).astype(np.float64)


def seconds(home: Ints, cost: Floats, speed: Floats) -> float:
    """Return the duration of a round of all clients: that of its slowest worker."""
    return float((loads(home, cost, len(speed)) / speed).max())


def rebalance(home: Ints, cost: Floats, speed: Floats) -> Ints:
    """Return `home` with few clients moved, from overloaded workers to those that would finish first."""
    home = home.copy()
    load = loads(home, cost, len(speed))
    fair = cost.sum() / speed.sum()  # seconds, were clients divisible
    for slow in np.argsort(-load / speed):
        for client in _leaving(np.flatnonzero(home == slow), cost, load[slow] - fair * speed[slow]):
            after = (load + cost[client]) / speed
            after[slow] = load[slow] / speed[slow]
            fast = int(after.argmin())
            if fast != slow:
                home[client] = fast
                load[slow] -= cost[client]
                load[fast] += cost[client]
    return home


def _leaving(clients: Ints, cost: Floats, excess: float) -> Iterator[int]:
    """Yield the most costly clients that together do not exceed `excess`: few moves, and none too many."""
    for client in clients[np.argsort(-cost[clients], kind="stable")]:
        if cost[client] <= excess:
            excess -= cost[client]
            yield int(client)


def worth_moving(now: float, then: float, rounds: float, move: float) -> bool:
    """Return whether rounds of `then` seconds instead of `now` are worth a move that takes `move` seconds."""
    return then <= BETTER * now and (now - then) * rounds >= WORTH * move
