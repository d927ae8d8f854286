"""Which worker holds which clients: balanced by what clients cost and by how fast workers were measured to be."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedbraid.core.plan import LocalWork

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

BETTER = 0.8
"""Clients move where a round would take this share of its time, or less …"""
WORTH = 2.0
"""… and this many times the move is won back in the rounds that are left."""


def costs(sizes: NDArray[np.integer], work: LocalWork) -> Floats:
    """[clients] samples that each goes through in a round."""
    if work.steps:
        return np.asarray(work.steps * np.minimum(work.batch or sizes, sizes), dtype=np.float64)
    return np.asarray(work.epochs * sizes, dtype=np.float64)


def dealt(cost: Floats, speed: Floats) -> Ints:
    """[clients] a worker for each: the dearest first, each to who is done with the others soonest."""
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
    """[workers] what each one's clients cost together."""
    return np.bincount(home, cost, minlength=workers).astype(np.float64)


def seconds(home: Ints, cost: Floats, speed: Floats) -> float:
    """How long a round of everybody takes: as long as its slowest worker."""
    return float((loads(home, cost, len(speed)) / speed).max())


def evened(home: Ints, cost: Floats, speed: Floats) -> Ints:
    """`home` with few clients moved: from who takes longer than need be to who would be done first."""
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
    """The dearest clients that together cost no more than the excess: few of them, and not too many."""
    for client in clients[np.argsort(-cost[clients], kind="stable")]:
        if cost[client] <= excess:
            excess -= cost[client]
            yield int(client)


def worth_moving(now: float, then: float, rounds: float, move: float) -> bool:
    """Whether rounds of `then` seconds instead of `now` are worth a move that takes `move` seconds."""
    return then <= BETTER * now and (now - then) * rounds >= WORTH * move
