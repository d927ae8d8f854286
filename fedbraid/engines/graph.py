"""CUDA graphs: local steps captured once and replayed, reading from memory that stays where it is.

One graph holds several steps where a stretch is long enough: what every graph does once (look up its batches, write the
clients' state back) is then shared by them, and the GPU waits less between them.
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
"""How often steps at the end of a stretch are taken one by one before they get a graph of their own: cohorts of ragged
clients end differently each time, and a graph that is used once does not pay."""
PATIENCE = 0.25
"""Seconds that the capture of a graph may take if a longer one is to be captured too."""


class Captured:
    """Fixed memory for one stack, a step counter on the device, and a graph for each stack size.

    The memory is roomy: a smaller cohort, a shorter plan or fewer cached outputs fit without a new capture.
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
        self.time = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.ticks = torch.arange(BURST, device="cuda")
        self.graphs: dict[tuple[int, bool, int], torch.cuda.CUDAGraph] = {}
        self.ends: Counter[tuple[int, bool, int]] = Counter()  # how often a stretch ended with so many steps
        self.costly: set[tuple[int, bool]] = set()  # stretches whose steps take too long to capture several times
        self.pool = torch.cuda.graph_pool_handle()

    def fits(self, tensors: State, axes: Any) -> bool:
        """Whether `tensors` have a place in this memory, and clients the same axes."""
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
        """Fill the memory and set the time to 0; clients without a plan have nothing to do."""
        self.plan["counts"].zero_()
        for name, tree in tensors.items():
            grow(self.memory[name], lambda here, new: here[tuple(map(slice, new.shape))].copy_(new), tree)
        self.time.zero_()

    def rows(self, size: int, steps: int) -> State:
        """The plan of the first `size` clients from the present time on: [steps, size, ...]."""
        rows: State = grow(self.plan, lambda v: v[:, :size].index_select(0, self.time + self.ticks[:steps]))
        return rows

    def write(self, new: State) -> None:
        grow(new, lambda value, here: here[: len(value)].copy_(value), self.state)

    def replay(self, stretch: Stretch, body: Callable[[int], None]) -> None:
        """The steps of a stretch from their graphs, which are captured at the first call; `body(n)` takes n steps."""
        kind = (stretch.size, stretch.guarded)
        left = stretch.steps
        while left:
            steps = self._together(kind, left)
            if (*kind, steps) not in self.graphs:
                self.graphs[*kind, steps] = self._capture(kind, steps, body)
            self.graphs[*kind, steps].replay()
            left -= steps

    def _together(self, kind: tuple[int, bool], left: int) -> int:
        """How many of the steps that are left go into one graph. An end shorter than a burst waits until it recurs."""
        steps = min(left, BURST)
        if kind in self.costly or (*kind, 1) not in self.graphs:
            return 1
        if steps < BURST and (*kind, steps) not in self.graphs:
            self.ends[*kind, steps] += 1
            return steps if self.ends[*kind, steps] > AGAIN else 1
        return steps

    def _capture(self, kind: tuple[int, bool], steps: int, body: Callable[[int], None]) -> torch.cuda.CUDAGraph:
        if steps == 1:  # libraries choose their kernels and allocate before the capture
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
    """Without Python's collector of cycles: a graph of an earlier run that it freed would spoil a capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _has_room(here: Tensor, new: Tensor, dimensions: int) -> bool:
    """Whether `new` fits into `here`: smaller in some leading dimensions at most."""
    smaller = all(n <= h for n, h in zip(new.shape[:dimensions], here.shape[:dimensions], strict=True))
    return smaller and new.shape[dimensions:] == here.shape[dimensions:]


def _axes(axes: Any) -> Iterator[int]:
    """For each tensor that clients were given, whether its leading dimension is roomy: the client axis, if any."""
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
    """Memory for a tree, shaped by `shape(tensor, axis)`; `axes` is one axis for all, or a tree of them."""
    if isinstance(tree, Tensor):
        return torch.zeros(shape(tree, axes), dtype=tree.dtype, device=tree.device)
    return {k: _with_room(branch, axes[k] if isinstance(axes, dict) else axes, shape) for k, branch in tree.items()}
