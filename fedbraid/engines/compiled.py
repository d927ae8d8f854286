"""The compiled stack: clients begin and end together, and each trains in between as one call of machine code.

For small networks nearly all of a local step is the cost of asking for operations one by one. Here the step of ONE
client is recorded, written as C inside a loop over its steps, and compiled to a library that is cached on disk. Clients
then train side by side, one per core, without Python. Batches are padded and masked as in the stack.

Where a step cannot be written as C (an unknown operation, no compiler, out of time), the stack trains instead: it
computes the same numbers up to rounding, more slowly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.client_step import LocalJob, State
from fedbraid.core.memo import Memo
from fedbraid.core.outputs import Outputs
from fedbraid.core.plan import Ints, Plan
from fedbraid.core.round import nothing
from fedbraid.core.tree import Tree, grow, leaves, rebuild, rows
from fedbraid.engines.codegen.c_code import CSource, Unsupported, generate_c
from fedbraid.engines.codegen.c_operations import OPERATIONS
from fedbraid.engines.codegen.libraries import NotCompiled, library
from fedbraid.engines.codegen.machine import CompiledTraining
from fedbraid.engines.codegen.trace import record
from fedbraid.engines.cpu import usable_cores
from fedbraid.engines.samples import Clients
from fedbraid.engines.stack import Placed, Received, Stack, with_axes

log = logging.getLogger("fedbraid")


@dataclass(frozen=True, eq=False)
class Steps:
    """The local steps of some clients, client after client; only batches are padded, not the number of steps."""

    rows: State  # [steps of all clients, ...]
    epochs: Ints  # [K, epochs + 1] rows at which each client's epochs begin and the last ends; one if none is refreshed


@dataclass(frozen=True, eq=False)
class Training:
    """A library and the tensors that it takes."""

    machine: CompiledTraining
    source: CSource

    def takes(self, tensors: Sequence[Placed]) -> list[Placed]:
        """Return the tensors that the library takes, in its order; contiguous, since it has only their addresses."""
        source = self.source
        taken = [tensors[i] for i in (*source.carried, *source.planned, *source.fixed)]
        return [(t.contiguous(), axis) for t, axis in taken] + [(constant, None) for constant in source.constants]


class Compiled(Stack):
    """Runs the local job for many clients at once, with local steps as machine code."""

    def __init__(self, job: LocalJob, clients: Clients, capacity: int | None, workers: int, cap: float) -> None:
        super().__init__(job, clients, capacity)
        self.workers, self.cap = workers or usable_cores(), cap
        self.refused = ""  # why some local training could not be compiled
        self._trainings: dict[Any, Training | None] = {}
        self._laid_out: Memo[Steps] = Memo()

    def prepare(self, ids: Sequence[int], plans: Sequence[Plan]) -> None:
        self._steps_of(ids, plans)

    def _trained(
        self,
        state: State,
        given: Received,
        ids: Sequence[int],
        plans: Sequence[Plan],
        own: Tree,
        seen: State,
        meanwhile: Callable[[], None],
    ) -> State:
        steps, samples = self._steps_of(ids, plans), self.clients.samples
        rest = {"seen": seen, "x": samples.x, "y": samples.y}
        known = with_axes(given.tensors, given.axes)
        key = *((t.shape[axis is not None :], t.dtype) for t, axis in known), *_shapes(state, steps.rows, rest)
        if key not in self._trainings:
            self._trainings[key] = self._made(rows(state, 0), rows(steps.rows, 0), given[0], rows(rest, slice(2)))
        training = self._trainings[key]
        if training is None:
            return super()._trained(state, given, ids, plans, own, seen, meanwhile)
        state = grow(state, lambda t: t.clone(memory_format=torch.contiguous_format))  # the library writes into it
        last = steps.epochs.shape[1] - 2
        for epoch, (starts, stops) in enumerate(pairwise(steps.epochs.T)):
            if epoch:
                begins = torch.as_tensor(stops > starts)
                state = grow(self._new_epoch(state, given, given.tensors, own, begins), lambda t: t.contiguous())
            taken = training.takes([*with_axes(state, 0), *with_axes(steps.rows, None), *known, *with_axes(rest, None)])
            training.machine(starts, stops, _pointers(taken, len(ids)), meanwhile if epoch == last else nothing)
        return state

    def _steps_of(self, ids: Sequence[int], plans: Sequence[Plan]) -> Steps:
        return self._laid_out.of(plans, lambda: self._make_steps(ids, plans))

    def _make_steps(self, ids: Sequence[int], plans: Sequence[Plan]) -> Steps:
        lengths = np.array([len(plan) for plan in plans])
        ends = np.cumsum(lengths)
        epochs = np.stack([ends - lengths, ends], axis=1)
        if self.align:
            begins = [start + np.flatnonzero(plan.first) for start, plan in zip(ends - lengths, plans, strict=True)]
            epochs = np.repeat(ends[:, None], max(map(len, begins)) + 1, axis=1)
            for row, own in zip(epochs, begins, strict=True):
                row[: len(own)] = own
        laid_out = self._as_tensors(
            np.concatenate([plan.positions for plan in plans]),
            np.concatenate([plan.counts for plan in plans]),
            {key: np.concatenate([plan.draws[key] for plan in plans]) for key in plans[0].draws},
            ids,
            np.repeat(np.arange(len(ids)), lengths)[:, None],
        )
        return Steps(laid_out, epochs)

    # --- the step of one client, and its library

    def _step_of_one(self, state: State, row: State, given: State, rest: State) -> State:
        samples = replace(self.clients.samples, x=rest["x"], y=rest["y"])
        mask = (torch.arange(len(row["index"])) < row["counts"]).to(samples.dtype)
        x, y = samples.training_inputs(row["index"], row["draws"]), samples.targets(row["index"])
        seen = {
            name: Outputs(*(out[key][row["rows"]] for key in Outputs._fields)) for name, out in rest["seen"].items()
        }
        with self._counting(bool(seen)):
            return self.job.step(state, Batch(x, y, mask, row["draws"]), given, seen)

    def _made(self, state: State, row: State, given: State, rest: State) -> Training | None:
        """Return the library for tensors of these shapes, or None if there is none."""
        # `rest` holds two samples instead of all, so the recorded call must index within them; indices are inputs of
        # the program, and their values do not enter it.
        inside = {name: torch.zeros_like(row[name]) for name in ("index", "rows") if name in row}
        example = {"state": state, "row": row | inside, "given": given, "rest": rest}

        def flat(*tensors: Tensor) -> list[Tensor]:
            new = self._step_of_one(**rebuild(example, tensors))
            return leaves(grow(state, lambda _, value: value, new))  # in the order they came in

        try:
            source = generate_c(record(flat, leaves(example)), len(leaves(state)), len(leaves(row)), OPERATIONS)
            return Training(CompiledTraining(library(source.text, self.cap), source.scratch, self.workers), source)
        except (Unsupported, NotCompiled) as reason:
            self.refused = str(reason)
            log.info("local training runs as a stack, it cannot be compiled: %s", reason)
            return None


def _shapes(*trees: State) -> tuple[tuple[torch.Size, torch.dtype], ...]:
    """Return the shape and type of one row of each tensor."""
    return tuple((t.shape[1:], t.dtype) for tree in trees for t in leaves(tree))


def _pointers(taken: Sequence[Placed], clients: int) -> Ints:
    """Return addresses [clients, tensors]; a tensor without a client axis has one address for all clients."""
    first = np.array([t.data_ptr() for t, _ in taken])
    apart = np.array([0 if axis is None else t.nbytes // clients for t, axis in taken])
    places: Ints = first + apart * np.arange(clients)[:, None]
    return places
