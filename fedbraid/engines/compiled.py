"""The compiled stack: clients begin and end together, and each trains in between as one call of machine code.

For small networks nearly all of a local step is the cost of asking for operations one by one. Here the step of ONE
client is recorded, written as C inside a loop over its steps, and compiled to a library that is kept on disk. Clients
then train side by side, one per core, without Python. Batches are padded and masked as in the stack.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.local import LocalJob, State
from fedbraid.core.tree import Tree, grow, leaves, rebuild, rows
from fedbraid.engines.c_code import Source, Unsupported, as_c
from fedbraid.engines.c_operations import OPERATIONS
from fedbraid.engines.cpu import usable_cores
from fedbraid.engines.libraries import NotCompiled, library
from fedbraid.engines.machine import Machine
from fedbraid.engines.samples import Clients
from fedbraid.engines.schedule import Schedule
from fedbraid.engines.stack import Given, Stack, as_tables
from fedbraid.engines.trace import record
from fedbraid.models.outputs import Outputs

log = logging.getLogger("fedbraid")


@dataclass(frozen=True, eq=False)
class Training:
    """A library, and which tensors of a client it takes: state, row of the plan, given, and the rest, in that order."""

    machine: Machine
    source: Source


class Compiled(Stack):
    """Runs the local job for many clients at once; local steps by machine code."""

    def __init__(self, job: LocalJob, clients: Clients, capacity: int | None, workers: int, cap: float) -> None:
        super().__init__(job, clients, capacity)
        self.workers, self.cap = workers or usable_cores(), cap
        self.refused = ""  # why some local training could not be compiled
        self._trainings: dict[Any, Training | None] = {}

    def _train_traced(
        self,
        state: State,
        given: Given,
        plan: State,
        schedule: Schedule,
        own: Tree,
        cached: Mapping[str, Outputs] | None,
    ) -> State:
        samples, clients = self.clients.samples, len(schedule.counts)
        rest = {"seen": as_tables(cached), "x": samples.x, "y": samples.y}
        training = self._training(state, plan, given, rest)
        if training is None:
            return super()._train_traced(state, given, plan, schedule, own, cached)
        state = grow(state, lambda t: t.clone(memory_format=torch.contiguous_format))  # the library writes into it
        by_client = grow(plan, lambda t: t.transpose(0, 1))
        begins = np.flatnonzero(schedule.new_epoch) if self.align else np.zeros(1, dtype=np.int64)
        for begin, end in zip(begins, [*begins[1:], len(schedule)], strict=True):
            if begin:
                row = rows(plan, int(begin))
                state = grow(self._new_epoch(state, given, given.tensors, own, row, clients), lambda t: t.contiguous())
            memory = _Memory(clients)
            memory.add(state, 0)
            memory.add(by_client, 0)
            memory.add(given.tensors, given.axes)
            memory.add(rest, None)
            stops = begin + (schedule.counts[:, begin:end] > 0).sum(1)
            training.machine(int(begin), stops, memory.pointers(training.source))
        return state

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

    def _training(self, state: State, plan: State, given: Given, rest: State) -> Training | None:
        """The library for tensors of these shapes, or None where there is none; made at the first call."""
        example = {
            "state": rows(state, 0),
            "row": rows(plan, (0, 0)),
            "given": given[0],
            "rest": grow(rest, lambda t: t[:2]),
        }
        key = tuple((t.shape, t.dtype) for t in leaves(example))
        if key not in self._trainings:
            self._trainings[key] = None
            try:
                self._trainings[key] = self._made(example)
            except NotCompiled as reason:
                self.refused = str(reason)
                log.info("local training runs as a stack, it cannot be compiled: %s", reason)
        return self._trainings[key]

    def _made(self, example: dict[str, State]) -> Training:
        inside = {name: torch.zeros_like(example["row"][name]) for name in ("index", "rows")}  # of two rows of the rest
        example = example | {"row": example["row"] | inside}

        def flat(*tensors: Tensor) -> list[Tensor]:
            new = self._step_of_one(**rebuild(example, tensors))
            return leaves(grow(example["state"], lambda _, value: value, new))  # in the order they came in

        try:
            source = as_c(
                record(flat, leaves(example)), len(leaves(example["state"])), len(leaves(example["row"])), OPERATIONS
            )
        except Unsupported as reason:
            raise NotCompiled(str(reason)) from reason
        return Training(Machine(library(source.text, self.cap), source.scratch, self.workers), source)


class _Memory:
    """Where the tensors of each client lie."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.tensors: list[Tensor] = []  # holds them
        self.places: list[NDArray[np.int64]] = []  # for each tensor [clients]

    def add(self, tree: Any, axes: Any) -> None:
        """The tensors of a tree; `axes` is one client axis (0, or None: shared) or a tree of them."""
        if isinstance(tree, Tensor):
            tensor = tree.contiguous()
            apart = 0 if axes is None else tensor[0].numel() * tensor.element_size()
            self.tensors.append(tensor)
            self.places.append(tensor.data_ptr() + apart * np.arange(self.clients))
            return
        for key, branch in tree.items():
            self.add(branch, axes[key] if isinstance(axes, dict) else axes)

    def pointers(self, source: Source) -> NDArray[np.int64]:
        """[clients, what the library takes]"""
        taken = [self.places[i] for i in (*source.carried, *source.planned, *source.fixed)]
        constants = [np.full(self.clients, t.data_ptr()) for t in source.constants]
        return np.ascontiguousarray(np.stack([*taken, *constants], axis=1), dtype=np.int64)
