"""The stack: a whole cohort as one tensor program, with the clients along a leading axis.

The local step is written for one client and batched by `torch.func.vmap`. It is made into a program once for each of
a few stack sizes: on a CPU it is traced to a flat list of operations, which drops the cost of the transforms and of
the hooks' Python; on CUDA it is captured in a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedbraid.core.batch import Batch
from fedbraid.core.client_step import Batches, LocalJob, State, Work, keep_unless, no_batches
from fedbraid.core.gradient import gradient
from fedbraid.core.memo import Memo
from fedbraid.core.model import Model
from fedbraid.core.outputs import Outputs
from fedbraid.core.plan import Ints, Plan
from fedbraid.core.precision import Precision
from fedbraid.core.round import nothing
from fedbraid.core.tree import Tree, grow, leaves, rebuild, rows
from fedbraid.engines.codegen.trace import Flat, trace
from fedbraid.engines.graph import Captured
from fedbraid.engines.kernels.gradient_buffer import GradientBuffer
from fedbraid.engines.kernels.stacked_layers import for_stacks
from fedbraid.engines.samples import Clients, picked
from fedbraid.engines.step_schedule import StepSchedule, Stretch, make_schedule, rung
from fedbraid.engines.transfer import to_device


@dataclass(frozen=True, eq=False)
class Received:
    """Tensors that clients received, and for each its client axis: 0, or None if all clients share it."""

    tensors: State
    axes: Any

    def __getitem__(self, index: Any) -> State:
        """Return the tensors of some clients; shared tensors stay whole."""
        some: State = _map2(self.tensors, self.axes, lambda t, axis: t if axis is None else t[index])
        return some


class Stack:
    """Runs the local job for K clients at once. Every tensor of the state has the client axis first: [K, ...]."""

    def __init__(
        self, job: LocalJob, clients: Clients, capacity: int | None = None, precision: Precision = "highest"
    ) -> None:
        model = job.model.for_stack()  # before the kernels, whose layers must share one gradient buffer with `parts`
        model = model if precision == "highest" else _with_kernels(model, clients, precision)
        self.job, self.clients = replace(job, differentiate=gradient, model=model), clients
        self.capacity = capacity  # clients in every stack, where their number is fixed
        self.device = clients.samples.x.device
        self.align = any(s.every_epoch for s in job.chain)  # whether local epochs begin together
        self.gradients, self.views = 1, 0  # looks at a batch per local step, counted when the step is made
        self.passed: list[Work] = []  # for each client of the last stack, samples that its hooks passed over
        self._prepared: Memo[tuple[StepSchedule, State]] = Memo()
        self._programs: dict[tuple[Any, ...], Flat] = {}
        self._captured: Captured | None = None

    # --- the four phases, each for K clients at once

    def train(
        self,
        given: Received,
        ids: Sequence[int],
        plans: Sequence[Plan],
        cached: Mapping[str, Outputs],
        meanwhile: Callable[[], None] = nothing,
    ) -> tuple[Tree, dict[str, Tree]]:
        """Train the clients `ids`; return their uploads and kept state [K, ...].

        Args:
            given: what the clients received.
            ids: the clients' positions, longest plan first (see `step_schedule`).
            plans: their plans, in the same order.
            cached: outputs of frozen models, a row for each sample of these clients, in order.
            meanwhile: called once while the device is busy.
        """
        self.passed = [Work()] * len(ids)
        own = self._own(ids, plans)
        state: State = self._begun(given, own, len(plans))
        state = self._trained(state, given, ids, plans, own, as_tables(cached), meanwhile)
        ended = self._ended(state, given, own)
        if self.device.type == "cuda":
            meanwhile()  # the GPU is still busy
        return ended

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
        """Return the state after all local steps; engines that train on other threads call `meanwhile` here."""
        schedule, plan = self._schedule_of(ids, plans)
        train = self._train_captured if self.device.type == "cuda" else self._train_traced
        return train(state, given, plan, schedule, own, seen)

    def _begun(self, given: Received, own: Tree, clients: int) -> State:
        state: State
        if self.job.chain.using("begin") or 0 in (given.axes["start"], given.axes["buffers"]):
            state = self._passing(own, vmap(self._begin, (given.axes, 0)), given.tensors, own)
        else:  # all begin alike, and what is each one's own is not looked at
            state = grow(self.job.begin(given.tensors, no_batches), lambda t: t.expand(clients, *t.shape))
        return state

    def _ended(self, state: State, given: Received, own: Tree) -> tuple[Tree, dict[str, Tree]]:
        if not self.job.chain.using("end"):  # then nothing is computed, and a client axis does not matter
            return self.job.end(state, given.tensors, no_batches)
        uploads, kept = self._passing(own, vmap(self._end, (0, given.axes, 0)), state, given.tensors, own)
        return uploads, kept

    def prepare(self, ids: Sequence[int], plans: Sequence[Plan]) -> None:
        """Prepare the schedule of these clients before they are trained."""
        self._schedule_of(ids, plans)

    def _schedule_of(self, ids: Sequence[int], plans: Sequence[Plan]) -> tuple[StepSchedule, State]:
        """Return the schedule of a stack, and its tensors on the device."""

        def make() -> tuple[StepSchedule, State]:
            schedule = make_schedule(plans, align_epochs=self.align)
            return schedule, self._on_device(schedule, ids)

        return self._prepared.of(plans, make)

    def probe(self, given: Received, ids: Sequence[int], plans: Sequence[Plan]) -> Tree:
        self.passed = [Work()] * len(ids)
        own = self._own(ids, plans)
        answers: Tree = self._passing(own, vmap(self._probe, (given.axes, 0)), given.tensors, own)
        return answers

    def _passing(self, own: Tree, f: Callable[..., Any], *args: Any) -> Any:
        """Return `f(*args)`, and add the samples of its passes over data to `self.passed` for the clients in `own`."""
        tally = self.job.tally
        tally.passes = tally.slopes = tally.glances = 0
        result = f(*args)
        if tally.passes or tally.slopes or tally.glances:
            for place, size, first in zip(*(own[k].tolist() for k in ("place", "sizes", "first_count")), strict=True):
                self.passed[place] += tally.over(size, first)
        return result

    def _probe(self, given: State, own: Tree) -> Tree:
        return self.job.probe(given, self._batches(own))

    def _begin(self, given: State, own: Tree) -> State:
        return self.job.begin(given, self._batches(own))

    def _end(self, state: State, given: State, own: Tree) -> tuple[Tree, dict[str, Tree]]:
        return self.job.end(state, given, self._batches(own))

    # --- the local step for K clients

    def _look_up(self, row: State, seen: State) -> State:
        """Return the batches of one row of the plan or of several, with mask, draws and cached outputs.

        `row["index"]` is [..., K, B]. Positions from a batch's count on are padding: they repeat some sample and have
        mask 0, so no loss and no statistic may count them.
        """
        samples, index = self.clients.samples, row["index"]
        return {
            "x": samples.training_inputs(index, row["draws"]),
            "y": samples.targets(index),
            "mask": (torch.arange(index.shape[-1], device=self.device) < row["counts"][..., None]).to(samples.dtype),
            "draws": row["draws"],
            "seen": grow(seen, lambda table: picked(table, row["rows"])),
        }

    def _step(self, axes: Any, guarded: bool, state: State, given: State, batches: State) -> State:
        """Take one step of every client in `state`. `guarded`: some are idle, and keep their state unchanged.

        The guard costs a `torch.where` on every tensor of the state, so programs without idle clients leave it out.
        """

        def one(state: State, given: State, b: State) -> State:
            outputs = {name: Outputs(out["logits"], out["features"]) for name, out in b["seen"].items()}
            new = self.job.step(state, Batch(b["x"], b["y"], b["mask"], b["draws"]), given, outputs)
            return keep_unless(b["mask"].any(), new, state) if guarded else new

        with self._counting(bool(batches["seen"])):
            stepped: State = vmap(one, (0, axes, 0))(state, given, batches)
        return stepped

    @contextmanager
    def _counting(self, cached: bool) -> Iterator[None]:
        """Count the evaluations of the objective and of frozen models while a step is traced or captured."""
        tally = self.job.tally
        before = tally.gradients, tally.views
        yield
        self.gradients = tally.gradients - before[0]
        self.views = self.views if cached else tally.views - before[1]
        tally.gradients, tally.views = before

    def _program(self, axes: Any, guarded: bool, example: dict[str, State]) -> Flat:
        """Return the step as a flat list of operations on leaves, traced once for each combination of shapes."""
        key = (guarded, str(axes), *(tuple(t.shape) for t in leaves(example)))
        if key not in self._programs:

            def flat(*tensors: Tensor) -> list[Tensor]:
                here = rebuild(example, tensors)
                new = self._step(axes, guarded, here["state"], here["given"], self._look_up(here["row"], here["seen"]))
                return leaves(grow(example["state"], lambda _, value: value, new))  # in the order they came in

            self._programs[key] = trace(flat, leaves(example))
        return self._programs[key]

    # --- running a schedule

    def _train_traced(
        self,
        state: State,
        given: Received,
        plan: State,
        schedule: StepSchedule,
        own: Tree,
        seen: State,
    ) -> State:
        everybody = len(schedule.counts)
        idle: list[list[Tensor]] = []
        live, size, guarded = [t.contiguous() for t in leaves(state)], everybody, False
        now, program = given.tensors, None
        for t, active in enumerate(schedule.active):
            fits = rung(int(active), everybody)
            # `idle` holds the slices that left, last one nearest to the live prefix: joined in reverse order they
            # restore the order of the clients, on which every other tensor of the round relies.
            if fits > size:  # a new aligned epoch: clients that had finished the last one train again
                live, idle, size = _joined([live, *reversed(idle)]), [], everybody
            if fits < size:  # clients whose steps are done leave the stack
                idle.append([v[fits:] for v in live])
                live = [v[:fits] for v in live]
            if fits != len(now["steps"]):
                now, program = given[:fits], None
            size = fits
            row = rows(plan, (t, slice(size)))
            if schedule.new_epoch[t] and t:
                live = leaves(self._new_epoch(rebuild(state, live), given, now, own, row["counts"] > 0))
            padded = bool((schedule.counts[:size, t] == 0).any())
            if program is None or padded != guarded:
                example = {"state": rebuild(state, live), "given": now, "row": row, "seen": seen}
                guarded, program = padded, self._program(given.axes, padded, example)
                fixed, tables = leaves(now), leaves(seen)
            live = program(*live, *fixed, *leaves(row), *tables)
        finished: State = rebuild(state, _joined([live, *reversed(idle)]))
        return finished

    def _new_epoch(self, state: State, given: Received, now: State, own: Tree, begins: Tensor) -> State:
        """Return the state of the first clients, with the memory refreshed of those that begin a local epoch."""
        if not any(s.every_epoch for s in self.job.chain.using("begin")):
            return state

        def one(state: State, given: State, own: Tree, begins: Tensor) -> State:
            return keep_unless(begins, self.job.new_epoch(state, given, self._batches(own)), state)

        here = rows(own, slice(len(begins)))
        fresh: State = self._passing(rows(here, begins), vmap(one, (0, given.axes, 0, 0)), state, now, here, begins)
        return fresh

    def _train_captured(
        self,
        state: State,
        given: Received,
        plan: State,
        schedule: StepSchedule,
        own: Tree,
        seen: State,
    ) -> State:
        clients = len(schedule.counts)
        fixed = {"state": state, "given": given.tensors, "plan": plan, "seen": seen}
        if self._captured is None or not self._captured.fits(fixed, given.axes):
            self._captured = None  # frees the old memory first
            self._captured = Captured(fixed, given.axes, max(self.capacity or 0, clients))
        captured = self._captured
        captured.load(fixed)
        for stretch in schedule.stretches(captured.capacity):
            if stretch.begins_epoch and stretch.start:
                active = int(schedule.active[stretch.start])
                live = rows(captured.state, slice(active))
                row = rows(captured.plan, (stretch.start, slice(active)))
                now = Received(captured.given, given.axes)
                captured.write(self._new_epoch(live, now, now[:active], own, row["counts"] > 0))
            captured.replay(stretch, partial(self._steps, captured, given.axes, stretch))
        finished: State = grow(captured.state, lambda v: v[:clients].clone())
        return finished

    def _steps(self, captured: Captured, axes: Any, stretch: Stretch, steps: int) -> None:
        """Take consecutive steps within a graph; their batches are looked up at once, in one gather."""
        live: State = rows(captured.state, slice(stretch.size))
        now = Received(captured.given, axes)[: stretch.size]
        batches = self._look_up(captured.rows(stretch.size, steps), captured.seen)
        for step in range(steps):
            live = self._step(axes, stretch.guarded, live, now, rows(batches, step))
        captured.write(live)

    # --- data on the device

    def _on_device(self, schedule: StepSchedule, ids: Sequence[int]) -> State:
        """Return the schedule as tensors [T, K, ...]: sample indices, rows of the cached outputs, counts and draws."""
        whose = np.arange(len(ids))[:, None, None]
        plan = self._as_tensors(schedule.positions, schedule.counts, schedule.draws, ids, whose)
        turned: State = grow(plan, lambda t: t.transpose(0, 1))
        return turned

    def _as_tensors(
        self, positions: Ints, counts: Ints, draws: Mapping[str, np.ndarray], ids: Sequence[int], whose: Ints
    ) -> State:
        """Return local steps as tensors on the device; `whose` is the position in `ids` of each step's client."""
        mine = np.asarray(ids)[whose]
        at = to_device(positions, self.device)
        plan: State = {
            "index": picked(self.clients.order, at + to_device(self.clients.offsets[mine], self.device)),
            "counts": to_device(counts, self.device),
            "draws": {k: to_device(v, self.device, self.clients.samples.dtype) for k, v in draws.items()},
        }
        if self.job.chain.using("views"):
            sizes = self.clients.sizes[list(ids)]
            plan["rows"] = at + to_device((np.cumsum(sizes) - sizes)[whose], self.device)
        return plan

    def _own(self, ids: Sequence[int], plans: Sequence[Plan]) -> Tree:
        """Return each client's samples in batches [K, batches, B] and its first batch, if a hook may read them."""
        if not any(self.job.chain.using(hook) for hook in ("begin", "end", "probe")):
            return {"sizes": torch.zeros(len(ids), dtype=torch.int64, device=self.device)}
        sizes, starts = self.clients.sizes[list(ids)], self.clients.offsets[list(ids)]
        longest = int(sizes.max())
        width = min(longest, 512)
        batches = -(-longest // width)
        positions = np.minimum(np.arange(batches * width), sizes[:, None] - 1)
        firsts = np.stack([plan.positions[0] for plan in plans])
        own = {
            "index": (positions + starts[:, None]).reshape(len(ids), batches, width),
            "counts": np.clip(sizes[:, None] - width * np.arange(batches), 0, width),
            "sizes": sizes,
            "place": np.arange(len(ids)),
            "first": firsts + starts[:, None],
            "first_count": np.array([plan.counts[0] for plan in plans]),
        }
        tensors = {key: to_device(value, self.device) for key, value in own.items()}
        return tensors | {key: self.clients.order[tensors[key]] for key in ("index", "first")}

    def _batches(self, own: Tree) -> Batches:
        """Return the iterator over one client's data, batch by batch; padding has mask 0."""

        def batch(index: Tensor, count: Tensor) -> Batch:
            mask = torch.arange(len(index), device=self.device) < count
            return self.clients.samples.batch(index, mask.to(self.clients.samples.dtype))

        def batches(whole: bool) -> Iterator[Batch]:
            if not whole:
                yield batch(own["first"], own["first_count"])
                return
            for i in range(own["index"].shape[0]):
                yield batch(own["index"][i], own["counts"][i])

        return batches


def _with_kernels(model: Model, clients: Clients, precision: Precision) -> Model:
    """Return the model with this package's CUDA kernels, or unchanged if device, dtype or Triton rule them out."""
    samples = clients.samples
    if samples.x.device.type != "cuda" or samples.dtype != torch.float32 or find_spec("triton") is None:
        return model
    fine, buffer = precision == "high", GradientBuffer()
    training, evaluating = for_stacks(model.training, fine, buffer), for_stacks(model.evaluating, fine)
    return replace(model, training=training, evaluating=evaluating, parts=buffer.views)


def as_tables(cached: Mapping[str, Outputs]) -> State:
    """Return cached outputs as a tree of tensors."""
    return {name: {"logits": out.logits, "features": out.features} for name, out in cached.items()}


Placed = tuple[Tensor, int | None]
"""A tensor and its client axis; None: all clients share it."""


def with_axes(tree: Any, axes: Any) -> list[Placed]:
    """Return the tensors of a tree, each with its client axis; `axes` is one for all, or a tree of them."""
    if isinstance(tree, Tensor):
        return [(tree, axes)]
    branches = [(branch, axes[key] if isinstance(axes, dict) else axes) for key, branch in tree.items()]
    return [pair for branch, axis in branches for pair in with_axes(branch, axis)]


def _joined(parts: list[list[Tensor]]) -> list[Tensor]:
    return parts[0] if len(parts) == 1 else [torch.cat(tensors) for tensors in zip(*parts, strict=True)]


def _map2(tree: Any, other: Any, f: Callable[[Tensor, Any], Tensor]) -> Any:
    if isinstance(tree, Tensor):
        return f(tree, other)
    return {key: _map2(branch, other[key], f) for key, branch in tree.items()}
