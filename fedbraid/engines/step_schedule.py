"""When each client of a stack takes its steps.

Clients are sorted so that those with most to do come first; the ones still training are then always a prefix of the
stack, and finished clients leave it by slicing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbraid.core.plan import Plan

Times = slice | NDArray[np.int64]
"""Of one client's steps, in the time of its stack."""


@dataclass(frozen=True, eq=False)
class Timetable:
    """Stack time runs from 0 to T; a client with nothing to do at a time has count 0 there."""

    positions: NDArray[np.int64]  # [K, T, B]
    counts: NDArray[np.int64]  # [K, T]
    draws: dict[str, np.ndarray]  # [K, T, ...]
    active: NDArray[np.int64]  # [T] length of the prefix that has work
    new_epoch: NDArray[np.bool_]  # [T] whether clients of the prefix begin a local epoch, where they do so together

    def __len__(self) -> int:
        return len(self.active)

    def stretches(self, capacity: int) -> Iterator[Stretch]:
        """The timetable cut into stretches, for stacks of the sizes that `rung` gives."""
        clients = len(self.counts)
        sizes = np.array([rung(int(active), capacity) for active in self.active])
        reach = np.arange(clients)[:, None] < sizes
        guarded = (sizes > clients) | ((self.counts == 0) & reach).any(axis=0)
        new = np.concatenate([[True], (np.diff(sizes) != 0) | np.diff(guarded) | self.new_epoch[1:]])
        starts = np.flatnonzero(new)
        for start, end in zip(starts, [*starts[1:], len(self)], strict=True):
            yield Stretch(
                int(start), int(end - start), int(sizes[start]), bool(guarded[start]), bool(self.new_epoch[start])
            )


@dataclass(frozen=True)
class Stretch:
    """Steps that follow one another and are alike."""

    start: int
    steps: int
    size: int  # of the stack
    guarded: bool  # whether some of its clients have nothing to do
    begins_epoch: bool  # whether clients of the prefix begin a local epoch with the first step


def longest_first(plans: Sequence[Plan]) -> NDArray[np.int64]:
    """The order in which clients stand in a stack."""
    return np.argsort([-len(plan) for plan in plans], kind="stable")


def make_timetable(plans: Sequence[Plan], *, align_epochs: bool) -> Timetable:
    """Plans of a stack (longest first) side by side. Aligned, all clients begin each local epoch together."""
    times, length = _aligned(plans) if align_epochs else _from_the_start(plans)
    clients, width = len(plans), plans[0].positions.shape[1]
    positions = np.zeros((clients, length, width), dtype=np.int64)
    counts = np.zeros((clients, length), dtype=np.int64)
    new_epoch = np.zeros(length, dtype=np.bool_)
    draws = {key: np.zeros((clients, length, *v.shape[1:]), v.dtype) for key, v in plans[0].draws.items()}
    for k, (plan, at) in enumerate(zip(plans, times, strict=True)):
        positions[k, at], counts[k, at] = plan.positions, plan.counts
        new_epoch[at] |= plan.first & align_epochs
        for key, value in plan.draws.items():
            draws[key][k, at] = value
    active = clients - np.argmax(counts[::-1] > 0, axis=0)
    return Timetable(positions, counts, draws, active, new_epoch)


def _from_the_start(plans: Sequence[Plan]) -> tuple[list[Times], int]:
    """For each client, the stack times of its steps when all begin at once; the length of the longest."""
    return [slice(len(plan)) for plan in plans], max(len(plan) for plan in plans)


def _aligned(plans: Sequence[Plan]) -> tuple[list[Times], int]:
    """For each client, the stack time of each of its steps when epochs begin together; the length of all."""
    epochs = [np.cumsum(plan.first) - 1 for plan in plans]  # which epoch each step belongs to
    number = max(int(e[-1]) + 1 for e in epochs)
    steps = np.stack([np.bincount(e, minlength=number) for e in epochs])  # [K, epochs]
    begins = np.concatenate([[0], np.cumsum(steps.max(axis=0))])
    within = [np.arange(len(e)) - np.concatenate([[0], np.cumsum(n)])[e] for e, n in zip(epochs, steps, strict=True)]
    return [begins[e] + w for e, w in zip(epochs, within, strict=True)], int(begins[-1])


def rung(clients: int, capacity: int) -> int:
    """The stack size that holds `clients`: one of a few, so that few programs are made.

    Sizes have at most three significant bits, which wastes at most a fifth of a stack.
    """
    step = 1 << max(0, clients.bit_length() - 3)
    return min(-(-clients // step) * step, capacity)
