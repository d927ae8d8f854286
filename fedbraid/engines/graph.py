"""CUDA graphs: local steps are captured once and replayed.

A graph records addresses, not tensors. Invariant: everything a captured step reads or writes lies in `Captured.memory`
(or in the graph's own pool) and never moves; a round copies its inputs in, replays, and copies the state out. A tensor
that was allocated elsewhere would be freed and reused while the graph still reads its address: wrong numbers, no error.

A graph holds several steps (a burst) where a stretch is long enough: looking up the batches and writing the state back
happen once for each graph, so a burst shares their cost and leaves fewer gaps between kernels.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from fedbraid.core.client_step import State
from fedbraid.core.tree import grow, leaves
from fedbraid.engines.step_schedule import Stretch, rung

BURST = 8
"""Steps in one graph."""
AGAIN = 3
"""Number of times that a remainder shorter than a burst is replayed step by step before it gets a graph of its own.
Cohorts of ragged clients end differently each round, and a graph that is used once costs more than it saves."""
PATIENCE = 0.25
"""Seconds. If the capture of one step takes longer, no burst is captured for this stack size."""


class Captured:
    """Fixed memory for one stack, a step counter on the device, and a graph for each (size, guarded, steps).

    Layout: "state" [capacity, ...], "given" [capacity, ...] or shared, "plan" [T, capacity, ...], "seen" [rows, ...].
    Sizes are rounded up, so that a smaller cohort, a shorter plan or fewer cached outputs fit without a new capture.
    """

    def __init__(self, like: State, axes: Any, capacity: int) -> None:
        self.axes, self.capacity = axes, capacity
        self.memory: State = {
            "state": _with_room(like["state"], 0, lambda t, axis: _clients(t, axis, capacity)),
            "given": _with_room(like["given"], axes, lambda t, axis: _clients(t, axis, capacity)),
            "plan": _with_room(like["plan"], 0, lambda t, _: [_more(t.shape[0]), capacity, *t.shape[2:]]),
            "seen": _with_room(like["seen"], 0, lambda t, _: [_more(t.shape[0]), *t.shape[1:]]),
        }
        self.state: State = self.memory["state"]
        self.given: State = self.memory["given"]
        self.plan: State = self.memory["plan"]
        self.seen: State = self.memory["seen"]
        # The time is a tensor and not an argument: a replay repeats its arguments, so the graph advances it itself.
        self.time = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.ticks = torch.arange(BURST, device="cuda")
        self.graphs: dict[tuple[int, bool, int], torch.cuda.CUDAGraph] = {}
        self.ends: Counter[tuple[int, bool, int]] = Counter()  # how often a stretch ended with so many steps
        self.costly: set[tuple[int, bool]] = set()  # stretches whose steps take too long to capture several times
        # Graphs are replayed one after another and hand over through `memory` alone, so they may share one pool.
        self.pool = torch.cuda.graph_pool_handle()

    def fits(self, tensors: State, axes: Any) -> bool:
        """Return whether `tensors` fit into this memory, with the same client axes."""
        if axes != self.axes or any(len(leaves(self.memory[n])) != len(leaves(tensors[n])) for n in self.memory):
            return False
        roomy = {"state": 1, "plan": 2, "seen": 1}  # leading dimensions that may be smaller
        return all(
            _has_room(here, new, room)
            for name in self.memory
            for here, new, room in zip(
                leaves(self.memory[name]),
                leaves(tensors[name]),
                _axes(axes) if name == "given" else repeat(roomy.get(name, 0)),
                strict=False,
            )
        )

    def load(self, tensors: State) -> None:
        """Copy a round's tensors into the memory and set the time to 0."""
        self.plan["counts"].zero_()  # rows that this round does not fill must read as idle, not as the last round's
        for name, tree in tensors.items():
            grow(self.memory[name], lambda here, new: here[tuple(map(slice, new.shape))].copy_(new), tree)
        self.time.zero_()

    def rows(self, size: int, steps: int) -> State:
        """Return the plan of the first `size` clients from the current time on: [steps, size, ...]."""
        rows: State = grow(self.plan, lambda v: v[:, :size].index_select(0, self.time + self.ticks[:steps]))
        return rows

    def write(self, new: State) -> None:
        """Copy the state of the first clients back into the memory."""
        grow(new, lambda value, here: here[: len(value)].copy_(value), self.state)

    def replay(self, stretch: Stretch, body: Callable[[int], None]) -> None:
        """Replay the steps of a stretch; graphs are captured at their first use. `body(n)` takes n steps."""
        kind = (stretch.size, stretch.guarded)
        left = stretch.steps
        while left:
            steps = self._together(kind, left)
            if (*kind, steps) not in self.graphs:
                self.graphs[*kind, steps] = self._capture(kind, steps, body)
            self.graphs[*kind, steps].replay()
            left -= steps

    def _together(self, kind: tuple[int, bool], left: int) -> int:
        """Return how many of the remaining steps go into the next graph: a burst, one step, or a recurring remainder.

        The first graph of a kind always has one step: its capture also warms up, and its time decides about bursts.
        """
        steps = min(left, BURST)
        if kind in self.costly or (*kind, 1) not in self.graphs:
            return 1
        if steps < BURST and (*kind, steps) not in self.graphs:
            self.ends[*kind, steps] += 1
            return steps if self.ends[*kind, steps] > AGAIN else 1
        return steps

    def _capture(self, kind: tuple[int, bool], steps: int, body: Callable[[int], None]) -> torch.cuda.CUDAGraph:
        # cuBLAS, cuDNN and Triton choose kernels, compile and allocate workspaces at first use, which is illegal during
        # a capture. Two warm-up steps on a side stream do that first; they train, so the state is restored afterwards.
        if steps == 1:
            before = grow(self.state, lambda v: v.clone())
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    body(steps)
            torch.cuda.current_stream().wait_stream(side)
            grow(self.state, lambda here, old: here.copy_(old), before)
        began = perf_counter()
        graph = torch.cuda.CUDAGraph()
        with uncollected(), torch.cuda.graph(graph, pool=self.pool):
            body(steps)
            self.time.add_(steps)
        if perf_counter() - began > PATIENCE:
            self.costly.add(kind)
        return graph


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable Python's garbage collector: freeing a CUDA graph of an earlier run would invalidate the capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _has_room(here: Tensor, new: Tensor, dimensions: int) -> bool:
    """Return whether `new` fits into `here`: it may be smaller in the leading `dimensions` only."""
    smaller = all(n <= h for n, h in zip(new.shape[:dimensions], here.shape[:dimensions], strict=True))
    return smaller and new.shape[dimensions:] == here.shape[dimensions:]


def _axes(axes: Any) -> Iterator[int]:
    """Yield for each received tensor how many leading dimensions may be smaller: 1 with a client axis, else 0."""
    for value in axes.values():
        if isinstance(value, dict):
            yield from _axes(value)
        else:
            yield 0 if value is None else 1


def _more(length: int) -> int:
    return rung(length, 2**62)


def _clients(tensor: Tensor, axis: int | None, capacity: int) -> list[int]:
    return list(tensor.shape) if axis is None else [capacity, *tensor.shape[1:]]


def _with_room(tree: Any, axes: Any, shape: Callable[[Tensor, Any], list[int]]) -> Any:
    """Allocate memory for a tree, shaped by `shape(tensor, axis)`; `axes` is one axis for all, or a tree of them."""
    if isinstance(tree, Tensor):
        return torch.zeros(shape(tree, axes), dtype=tree.dtype, device=tree.device)
    return {k: _with_room(branch, axes[k] if isinstance(axes, dict) else axes, shape) for k, branch in tree.items()}
