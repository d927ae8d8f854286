"""The compiled stack: clients begin and end together, and each trains in between as one call of machine code.

For small networks nearly all of a local step is the cost of asking for operations one by one. Here the step of ONE
client is traced, repeated in a loop, and compiled to a library that is kept on disk. Clients then run side by side,
one per core, without Python. Batches are padded and masked as in the stack.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.local import LocalJob, State
from fedbraid.core.tree import Tree, grow, leaves, rebuild, rows
from fedbraid.engines import libraries
from fedbraid.engines.cpu import usable_cores
from fedbraid.engines.libraries import Input, NotCompiled, Request
from fedbraid.engines.machine import Machine
from fedbraid.engines.samples import Clients
from fedbraid.engines.schedule import Schedule
from fedbraid.engines.stack import Given, Stack, as_tables
from fedbraid.engines.trace import Program, Unwritable, trace
from fedbraid.models.outputs import Outputs

log = logging.getLogger("fedbraid")


@dataclass(frozen=True, eq=False)
class Training:
    """A library, and what it takes of the tensors of a client: state, row of the plan, given, and the rest."""

    machine: Machine
    carried: list[int]  # what a step changes; the library gives it back
    takes: list[int]  # what is carried, then what else it looks at
    constants: list[Tensor]


class Compiled(Stack):
    """Runs the local job for many clients at once; local steps by machine code."""

    def __init__(self, job: LocalJob, clients: Clients, capacity: int | None, workers: int, cap: float) -> None:
        super().__init__(job, clients, capacity)
        self.workers, self.cap = workers or usable_cores(), cap
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
        plan, rest = grow(plan, lambda t: _two(t, 1)), grow(rest, lambda t: _two(t, 0))
        training = self._training(state, plan, given, rest)
        if training is None:
            return super()._train_traced(state, given, plan, schedule, own, cached)
        begins = np.flatnonzero(schedule.new_epoch) if self.align else np.zeros(1, dtype=np.int64)
        fixed = [*_each(plan, 0, clients), *_each(given.tensors, given.axes, clients), *_each(rest, None, clients)]
        for begin, end in zip(begins, [*begins[1:], len(schedule)], strict=True):
            if begin:
                row = rows(plan, (slice(None), int(begin)))
                state = self._new_epoch(state, given, given.tensors, own, row, clients)
            stops = begin + (schedule.counts[:, begin:end] > 0).sum(1)
            state = self._advanced(training, state, fixed, int(begin), stops)
        return state

    def _advanced(
        self, training: Training, state: State, fixed: list[Sequence[Tensor]], begin: int, stops: np.ndarray
    ) -> State:
        """Every client's state after its rows of the plan from `begin` until its own stop."""
        every = [*_each(state, 0, len(stops)), *fixed]
        taken = [every[i] for i in training.takes]
        start, ends = torch.tensor(begin), torch.as_tensor(stops).unbind()
        busy = np.flatnonzero(stops > begin)  # a client without steps in this epoch stays as it is
        after = training.machine([[start, ends[k], *(t[k] for t in taken), *training.constants] for k in busy])
        live = leaves(state)
        for place, i in enumerate(training.carried):
            new = torch.stack([results[place] for results in after])
            live[i] = new if len(busy) == len(stops) else live[i].index_copy(0, torch.as_tensor(busy), new)
        advanced: State = rebuild(state, live)
        return advanced

    # --- the step of one client, and its library

    def _step_of_one(self, state: State, row: State, given: State, rest: State) -> State:
        samples = replace(self.clients.samples, x=rest["x"], y=rest["y"])
        mask = (torch.arange(len(row["index"])) < row["counts"]).to(samples.dtype)
        x, y = samples.training_inputs(row["index"], row["draws"]), samples.targets(row["index"])
        seen = {name: Outputs(*(out[key][row["rows"]] for key in Outputs._fields)) for name, out in rest["seen"].items()}
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
            except (NotCompiled, Unwritable) as reason:
                log.warning("local training runs as a stack, it cannot be compiled: %s", reason)
        return self._trainings[key]

    def _made(self, example: dict[str, State]) -> Training:
        inside = {name: torch.zeros_like(example["row"][name]) for name in ("index", "rows")}  # of two rows of the rest
        example = example | {"row": example["row"] | inside}

        def flat(*tensors: Tensor) -> list[Tensor]:
            new = self._step_of_one(**rebuild(example, tensors))
            return leaves(grow(example["state"], lambda _, value: value, new))  # in the order they came in

        program = trace(flat, leaves(example))
        part = [name for name, tree in example.items() for _ in leaves(tree)]
        carried = [i for i, word in enumerate(program.gives) if word != f"x{i}"]
        used = sorted(program.uses - set(carried))
        takes = carried + [i for i in used if part[i] == "row"] + [i for i in used if part[i] != "row"]
        constants = [t.contiguous() for t in program.constants.values()]
        tensors = leaves(example)
        request = Request(
            program.written(takes, carried),
            (*(_input(tensors[i], part[i]) for i in takes), *(_input(t, "constant") for t in constants)),
            len(carried),
            sum(part[i] == "row" for i in takes),
        )
        library = libraries.library(request, self.cap, lambda: log.info("compiling local training …"))
        return Training(Machine(library, len(carried), self.workers), carried, takes, constants)


def _input(tensor: Tensor, part: str) -> Input:
    """What the compiler has to know of a tensor; a plan has rows, and there may be any number of samples."""
    shape = tuple(tensor.shape) if part != "row" else (2, *tensor.shape)
    return Input(shape, str(tensor.dtype).removeprefix("torch."), part in ("row", "rest"))


def _each(tree: Any, axes: Any, clients: int) -> list[Sequence[Tensor]]:
    """The tensors of a tree, client by client; `axes` is one client axis (0, or None: shared) or a tree of them."""
    if isinstance(tree, Tensor):
        return [[tree.contiguous()] * clients if axes is None else tree.contiguous().unbind()]
    return [
        leaf
        for key, branch in tree.items()
        for leaf in _each(branch, axes[key] if isinstance(axes, dict) else axes, clients)
    ]


def _two(tensor: Tensor, axis: int) -> Tensor:
    """At least two rows along an axis: libraries are made for any number but one."""
    return tensor if tensor.shape[axis] != 1 else torch.cat([tensor, tensor], axis)
