"""The schedule of a stack: the time at which each client takes each local step.

Invariant: clients are sorted by their number of steps, longest first. The clients that still train are then always a
prefix of the stack, so that finished ones leave by slicing (a view) instead of by gathering rows (a copy of all
states). A stack in any other order would train the wrong clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbraid.core.plan import Plan

Times = slice | NDArray[np.int64]
"""Times of one client's steps within the schedule of its stack."""


@dataclass(frozen=True, eq=False)
class StepSchedule:
    """Plans of K clients side by side, over times 0 to T; a client without a step at some time has count 0 there."""

    positions: NDArray[np.int64]  # [K, T, B]
    counts: NDArray[np.int64]  # [K, T]
    draws: dict[str, np.ndarray]  # [K, T, ...]
    active: NDArray[np.int64]  # [T] length of the prefix of clients that still train
    new_epoch: NDArray[np.bool_]  # [T] True where clients begin a local epoch (False everywhere if not aligned)

    def __len__(self) -> int:
        return len(self.active)

    def stretches(self, capacity: int) -> Iterator[Stretch]:
        """Yield the schedule as stretches of like steps, with stack sizes from `rung(active, capacity)`.

        A CUDA graph is captured for each (size, guarded) pair, so fewer distinct stretches mean fewer captures.
        """
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
    """Consecutive steps with the same stack size and the same guard, which one captured program can take."""

    start: int
    steps: int
    size: int  # clients in the stack, idle ones included
    guarded: bool  # some of them are idle in some step: their state must be kept by `torch.where`
    begins_epoch: bool  # the first step begins a local epoch


def longest_first(plans: Sequence[Plan]) -> NDArray[np.int64]:
    """Return the order of the clients in a stack. Ties keep their order, so that the result is deterministic."""
    return np.argsort([-len(plan) for plan in plans], kind="stable")


def make_schedule(plans: Sequence[Plan], *, align_epochs: bool) -> StepSchedule:
    """Return the schedule of `plans`, which must be sorted longest first.

    With `align_epochs` all clients begin each local epoch at the same time, and those with fewer steps in an epoch
    wait: strands that refresh their memory at each epoch then do so for the whole stack at once.
    """
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
    return StepSchedule(positions, counts, draws, active, new_epoch)


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
    """Return the stack size to use for `clients`: the next number with at most three significant bits.

    Every size needs a program (or a CUDA graph) of its own. Rounding up leaves four sizes for each power of two and
    wastes at most a fifth of a stack on idle clients. The result never exceeds `capacity`.
    """
    step = 1 << max(0, clients.bit_length() - 3)
    return min(-(-clients // step) * step, capacity)
