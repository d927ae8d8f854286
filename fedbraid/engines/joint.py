"""Several runs in one stack: the clients of all runs train side by side, like one cohort.

Each run plans its own round, reads and writes its own clients' states and receives its own replies; only the tensor
program is shared. Runs may differ in seed, partition, round, server side, and in the numbers of their strands and
optimisers, which then become tensors with a client axis. Invariant: a run's results are those that it has alone; no
operation mixes rows of different clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from fedbraid.core.client_step import Tally, Work
from fedbraid.core.model import Model
from fedbraid.core.plan import Plan
from fedbraid.core.round import Job
from fedbraid.core.tree import Tree, grow, joined, nbytes
from fedbraid.core.varied import VARIED, VariedJob, differing, form
from fedbraid.engines.local_engine import CohortSlice, Local, explained
from fedbraid.engines.memory import clients_that_fit
from fedbraid.engines.replies import Stacked
from fedbraid.engines.samples import Clients, picked
from fedbraid.engines.stack import Received
from fedbraid.engines.step_schedule import longest_first
from fedbraid.engines.transfer import to_device
from fedbraid.errors import UserError

log = logging.getLogger("fedbraid")


def why_apart(one: Local, other: Local) -> str | None:
    """Return the reason why two engines cannot share a stack, or None if they can."""
    if one.kind != "stack" or other.kind != "stack":
        return "their engine is not the stack"
    if form(one.job.chain, one.job.optimizer) != form(other.job.chain, other.job.optimizer):
        return "the methods differ in more than numbers"
    if one.clients.samples is not other.clients.samples:
        return "the samples differ"
    if one.clients.samples.augment.active and one.width != other.width:
        return "batches are of different length, and so are the draws for their images"
    if not _same_network(one.job.model, other.job.model) or one.job.task != other.job.task:
        return "the networks differ in more than their weights"
    if one.own_buffers != other.own_buffers:
        return "buffers stay with the clients of one of them"
    if (one.chunk, one.precision, one.cache_views) != (other.chunk, other.precision, other.cache_views):
        return "the engines are set differently"
    return None


def _same_network(one: Model, other: Model) -> bool:
    if (one.layout, one.buffers, one.tied) != (other.layout, other.buffers, other.tied):
        return False
    if (one.frozen is None) != (other.frozen is None):
        return False
    if one.frozen is not None and other.frozen is not None and not torch.equal(one.frozen, other.frozen):
        return False
    if one.constants.keys() != other.constants.keys():
        return False
    if any(not torch.equal(t, other.constants[name]) for name, t in one.constants.items()):
        return False
    stay = [{n: b for n, b in m.training.named_buffers() if not b.is_floating_point()} for m in (one, other)]
    return str(one.training) == str(other.training) and all(torch.equal(b, stay[1][n]) for n, b in stay[0].items())


@dataclass(frozen=True, eq=False)
class _RunJob:
    """A run's job with the plans and inputs of its clients."""

    run: int
    job: Job
    ids: list[int]
    plans: list[Plan]
    given: Received


class Joint:
    """Engines that share a stack: `run({i: job of engines[i]}) -> {i: replies}`."""

    def __init__(self, engines: Sequence[Local]) -> None:
        first = engines[0]
        job = replace(first.job, tally=Tally())
        self.engines = engines
        self.values = differing([e.job.chain for e in engines], [e.job.optimizer for e in engines])
        self.apart: list[tuple[list[int], Joint]] = []  # one for each value, if different values cannot share a stack
        lengths = [len(e.clients) for e in engines]
        self.offsets = [0, *accumulate(lengths)]  # run r's client i is client offsets[r] + i of the joint stack
        own = [e.capacity for e in engines]
        self.local = Local(
            VariedJob(**vars(job)) if self.values[0] else job,
            first.setup,
            _side_by_side([e.clients for e in engines]),
            first.work,
            first.store,  # never used: states are each run's own
            "stack",
            chunk=first.chunk,
            capacity=sum(c or 0 for c in own) if all(own) else None,
            precision=first.precision,
            cache_views=first.cache_views,
            own_buffers=first.own_buffers,
            least_width=max(e.width for e in engines),
        )

    @torch.no_grad()
    def run(self, jobs: Mapping[int, Job]) -> dict[int, Stacked]:
        """Return the replies to jobs of one kind; runs whose tensors differ in shape train in separate stacks."""
        if self.apart:
            return self._run_apart(jobs)
        if len(jobs) == 1:
            return {run: self.engines[run].run(job) for run, job in jobs.items()}
        own_models = any(job.model.dim() == 2 for job in jobs.values())
        pending = [self._run_job(run, job, own_models) for run, job in jobs.items()]
        groups: dict[str, list[_RunJob]] = {}
        for one in pending:
            groups.setdefault(_signature(one), []).append(one)
        replies: dict[int, Stacked] = {}
        for group in groups.values():
            if len(group) == 1:
                replies[group[0].run] = self.engines[group[0].run].run(group[0].job)
                continue
            try:
                with explained(self.engines[group[0].run]):
                    replies |= self._run(group)
            except (RuntimeError, TypeError, ValueError, UserError) as error:
                if not self.values[0]:
                    raise
                self._separate(error)
                return replies | self._run_apart({run: job for run, job in jobs.items() if run not in replies})
        return replies

    def prepare(self, run: int, seed: int, round: int, ids: Sequence[int]) -> None:
        """Plan the next round of a run while a GPU is busy with the current one."""
        if self.local.setup.w.device.type == "cuda":
            self.engines[run].plans(seed, round, ids, self.local.width)

    def _run_job(self, run: int, job: Job, own_models: bool) -> _RunJob:
        """Return a run's job with its inputs. With `own_models` every client has a model row of its own."""
        if own_models and job.model.dim() == 1:
            each = len(job.cohort), -1
            job = replace(job, model=job.model.expand(each), buffers=job.buffers.expand(each))
        job = replace(job, sent={s: tree for s, tree in job.sent.items() if tree})
        engine = self.engines[run]
        ids = [int(i) for i in job.cohort.ids]
        plans = engine.plans(job.seed, job.round, ids, self.local.width)
        given = engine.given(job, engine.store.read(ids), CohortSlice(np.arange(len(ids)), ids, plans))
        values = {o: {n: job.model.new_tensor(v) for n, v in own.items()} for o, own in self.values[run].items()}
        axes = {o: dict.fromkeys(own) for o, own in values.items()}
        return _RunJob(run, job, ids, plans, Received(given.tensors | {VARIED: values}, given.axes | {VARIED: axes}))

    def _run(self, group: Sequence[_RunJob]) -> dict[int, Stacked]:
        """Train a group in one stack, or in a few if it does not fit; all clients sorted by their number of steps."""
        ids = [self.offsets[one.run] + i for one in group for i in one.ids]
        plans = [plan for one in group for plan in one.plans]
        lengths = [len(one.ids) for one in group]
        given = _merged([one.given for one in group], np.repeat(np.arange(len(group)), lengths))
        probing = group[0].job.kind == "probe"
        order = longest_first(plans)
        size = self._stack_size(len(ids), group[0].given)
        parts = [order[at : at + size] for at in range(0, len(ids), size)]
        trained = [
            (self._probe if probing else self.local.train_stack)(
                given(part), [ids[k] for k in part], [plans[k] for k in part]
            )
            for part in parts
        ]
        back = np.argsort(np.concatenate(parts))
        uploads, kept = joined([t[0] for t in trained]), joined([t[1] for t in trained])
        works = [w for t in trained for w in t[2]]
        replies: dict[int, Stacked] = {}
        for one, mine in zip(group, np.split(back, np.cumsum(lengths)[:-1]), strict=True):
            at = to_device(mine, one.job.model.device)
            if kept:
                self.engines[one.run].store.write(one.ids, grow(kept, lambda t, at=at: picked(t, at)))
            work = sum((works[k] for k in mine), Work())
            replies[one.run] = Stacked(
                grow(uploads, lambda t, at=at: picked(t, at)), work, 0 if probing else self.local.frozen
            )
        return replies

    def _probe(
        self, given: Received, ids: Sequence[int], plans: Sequence[Plan]
    ) -> tuple[Tree, dict[str, Tree], list[Work]]:
        answers = self.local.stack.probe(given, ids, plans)
        return answers, {}, self.local.stack.passed

    def _stack_size(self, clients: int, given: Received) -> int:
        """Return the clients of one stack. Each holds a copy of what its run shares, which counts as well."""
        if not self.local.chunk:
            shared = _over(given.axes, lambda axis, t: t if axis is None else t[:0], given.tensors)
            vectors = -(-nbytes(shared) // nbytes({"w": self.local.setup.w}))
            self.local.chunk = clients_that_fit(self.local.job, self.local.clients, self.local.width, vectors)
            if self.local.chunk < clients:
                log.info("the cohorts do not fit in memory at once: stacks of %d clients", self.local.chunk)
        return self.local.stack_size(clients)

    # --- where different values cannot be in one stack

    def _separate(self, error: Exception) -> None:
        """Let only runs with the same values share a stack from now on."""
        names = ", ".join(f"{name} of {owner}" for owner, own in self.values[0].items() for name in own)
        log.info("runs with different %s do not share a stack: %s", names, str(error).splitlines()[0])
        groups: dict[str, list[int]] = {}
        for run, values in enumerate(self.values):
            groups.setdefault(repr(values), []).append(run)
        self.apart = [(runs, Joint([self.engines[r] for r in runs])) for runs in groups.values()]

    def _run_apart(self, jobs: Mapping[int, Job]) -> dict[int, Stacked]:
        replies: dict[int, Stacked] = {}
        for runs, joint in self.apart:
            mine = {place: jobs[run] for place, run in enumerate(runs) if run in jobs}
            replies |= {runs[place]: answer for place, answer in joint.run(mine).items()} if mine else {}
        return replies


def _side_by_side(runs: Sequence[Clients]) -> Clients:
    """Return the clients of several runs, which hold parts of the same samples, one run after another."""
    ends = np.cumsum([0, *(clients.offsets[-1] for clients in runs)])
    offsets = [clients.offsets[:-1] + end for clients, end in zip(runs, ends, strict=False)]
    return Clients(
        runs[0].samples,
        torch.cat([clients.order for clients in runs]),
        np.concatenate([*offsets, ends[-1:]]),
        torch.cat([clients.label_counts for clients in runs]),
    )


def _merged(givens: Sequence[Received], run_of: np.ndarray) -> Callable[[np.ndarray], Received]:
    """Return a function from clients to their inputs; each gets a row of what its run shares."""
    axes = givens[0].axes
    whole = _over(
        axes, lambda axis, *ts: torch.stack(ts) if axis is None else torch.cat(ts), *(g.tensors for g in givens)
    )

    def some(part: np.ndarray) -> Received:
        places = {axis: to_device(at, device) for axis, at in ((0, part), (None, run_of[part]))}
        return Received(_over(axes, lambda axis, t: picked(t, places[axis]), whole), _over(axes, lambda _: 0))

    device = givens[0].tensors["start"].device
    return some


def _signature(pending: _RunJob) -> str:
    """Return a key that is equal for runs whose tensors can be stacked."""
    shapes = _over(
        pending.given.axes, lambda axis, t: (axis, t.shape[axis is not None :], t.dtype), pending.given.tensors
    )
    draws = {name: (values.shape[1:], values.dtype) for name, values in pending.plans[0].draws.items()}
    return f"{pending.job.kind} {shapes} {draws}"


def _over(axes: Any, f: Callable[..., Any], *trees: Any) -> Any:
    """Apply `f(axis, *tensors)` to every leaf of a tree of client axes (0, or None for shared tensors)."""
    if isinstance(axes, dict):
        return {key: _over(axis, f, *(tree[key] for tree in trees)) for key, axis in axes.items()}
    return f(axes, *trees)
