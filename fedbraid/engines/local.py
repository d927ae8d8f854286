"""All clients on one machine: as a stack, or in a loop."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedbraid.core.local import LocalJob, State, Work
from fedbraid.core.model import Model, why_not_stacked
from fedbraid.core.plan import LocalWork, Plan, make_plan
from fedbraid.core.random import stream
from fedbraid.core.round import Job
from fedbraid.core.strand import Setup
from fedbraid.core.tree import PerClient, Tree, rows, stack
from fedbraid.engines.loop import Loop
from fedbraid.engines.memory import SHARE, clients_that_fit, free_memory
from fedbraid.engines.replies import Inbox, Stacked
from fedbraid.engines.samples import Clients, Samples
from fedbraid.engines.schedule import longest_first
from fedbraid.engines.stack import Given, Stack
from fedbraid.engines.trace import LOOKS
from fedbraid.errors import UserError
from fedbraid.models.outputs import Outputs
from fedbraid.models.recurrence import Lstm

log = logging.getLogger("fedbraid")

Kind = Literal["stack", "loop"]

FASTER_ALONE = (nn.modules.conv._ConvNd, Lstm)
"""Layers for which a client per core beats a stack on a CPU: grouped convolutions run at half speed there, and LSTMs
have kernels for single clients only."""


FEW = 64 << 20
"""Bytes of a cohort's uploads of one kind that stay in memory where the user bounds it."""


class Store(Protocol):
    """What strands keep on clients between rounds."""

    def read(self, ids: Sequence[int]) -> dict[str, Tree]: ...  # {strand: {name: [C, ...]}}

    def write(self, ids: Sequence[int], kept: dict[str, Tree]) -> None: ...


def choose(kind: Literal["auto", "stack", "loop"], model: Model, samples: Samples) -> Kind:
    """The engine for this model on this device; says why when it cannot be the stack."""
    alone = any(isinstance(layer, FASTER_ALONE) for layer in model.training.modules())
    if kind == "loop" or (kind == "auto" and samples.x.device.type == "cpu" and alone):
        return "loop"
    reason = why_not_stacked(model, samples.inputs(torch.zeros(2, dtype=torch.int64, device=samples.x.device)))
    if reason:
        log.warning("clients run one by one: %s", reason)
        return "loop"
    return "stack"


@dataclass(eq=False)
class Local:
    """An engine: `run(job) -> replies`."""

    job: LocalJob
    setup: Setup
    clients: Clients
    work: LocalWork
    store: Store
    kind: Kind
    chunk: int = 0  # clients trained at a time at most; 0 = as many as fit in memory
    capacity: int | None = None  # clients in every round, where their number is fixed
    workers: int = 0  # clients trained at once by the loop on a CPU; 0 = one per core
    coarse: bool = False  # whether products may be rounded more than float32's are, for speed (CUDA)
    cache_views: bool = True

    def __post_init__(self) -> None:
        self.bounded = self.chunk > 0
        sizes = self.clients.sizes
        self.width = min(self.work.batch or int(sizes.max()), int(sizes.max()))
        if self.kind == "loop":
            self.loop = Loop(self.job, self.clients, self.workers)
        else:
            self.stack = Stack(self.job, self.clients, self.capacity, self.coarse)

    @torch.no_grad()
    def run(self, job: Job) -> Stacked:
        try:
            return self._run(job)
        except RuntimeError as error:
            if "data-dependent control flow" in str(error) or ".item()" in str(error):
                raise UserError(LOOKS) from error
            raise
        except ValueError as error:
            if "more than 1 value per channel" in str(error):
                raise UserError(
                    "BatchNorm needs two samples or more in a batch, and a client has a batch of one; "
                    "set local.drop_last=true, or a larger min_size of the partition"
                ) from error
            raise

    def _run(self, job: Job) -> Stacked:
        ids = [int(i) for i in job.cohort.ids]
        plans = [self.plan(job, i) for i in ids]
        order = np.arange(len(ids)) if job.kind == "probe" else longest_first(plans)
        size = self._chunk(len(ids))
        inbox, work = Inbox(len(ids), self._kept_in_memory() if size < len(ids) else math.inf), Work()
        for at in range(0, len(ids), size):
            part = order[at : at + size]
            mine, their_plans = [ids[k] for k in part], [plans[k] for k in part]
            given = self.given(job, self.store.read(mine), part, [len(p) for p in their_plans])
            if job.kind == "probe":
                uploads, done = self._probe(given, mine, their_plans)
            else:
                uploads, kept, done = self._train(job, given, mine, their_plans)
                if kept:
                    self.store.write(mine, kept)
            inbox.add(part, uploads)
            work += done
        frozen = 0 if self.job.model.frozen is None else int(self.job.model.frozen.sum())
        return inbox.replies(work, frozen if job.kind == "train" else 0)

    def plan(self, job: Job, client: int) -> Plan:
        """What this client does in the job's round."""
        size = int(self.clients.sizes[client])
        return make_plan(
            self.job.chain,
            self.work,
            size,
            self.width,
            seed=job.seed,
            round=job.round,
            client=client,
            augment=self.clients.samples.augment,
        )

    def _train(
        self, job: Job, given: Given, mine: Sequence[int], their_plans: Sequence[Plan]
    ) -> tuple[Tree, dict[str, Tree], Work]:
        """Some of the cohort, longest first: uploads, kept state and work."""
        cached, looked = self._look_ahead(job, given, mine, their_plans)
        if self.kind == "loop":
            ends = np.cumsum(self.clients.sizes[mine])
            tables = [
                {name: Outputs(*(t[end - self.clients.sizes[i] : end] for t in out)) for name, out in cached.items()}
                for i, end in zip(mine, ends, strict=True)
            ]
            one_by_one = self.loop.train([given[k] for k in range(len(mine))], mine, their_plans, tables)
            uploads, new = stack([u for u, _, _ in one_by_one]), stack([k for _, k, _ in one_by_one])
            return uploads, new, sum((w for _, _, w in one_by_one), Work(looked))
        self.stack.passed = Work()
        uploads, new = self.stack.train(given, mine, their_plans, cached)
        samples, gradients = sum(p.samples for p in their_plans), self.stack.gradients
        looks = gradients + (0 if cached else self.stack.views)
        return uploads, new, Work(looks * samples + looked, gradients * samples) + self.stack.passed

    def _probe(self, given: Given, mine: Sequence[int], their_plans: Sequence[Plan]) -> tuple[Tree, Work]:
        if self.kind == "loop":
            answers = self.loop.probe([given[k] for k in range(len(mine))], mine, their_plans)
            return stack([a for a, _ in answers]), sum((w for _, w in answers), Work())
        self.stack.passed = Work()
        return self.stack.probe(given, mine, their_plans), self.stack.passed

    def given(self, job: Job, kept: dict[str, Tree], part: np.ndarray, steps: Sequence[int]) -> Given:
        """What the clients at places `part` of the cohort receive and keep, with or without a client axis."""
        device, dtype = job.model.device, job.model.dtype
        at = torch.as_tensor(part, device=device)
        own_model = job.model.dim() == 2
        cohort = job.cohort
        own = 0 if own_model else None
        both = {  # tensor, client axis
            "start": (job.model[at] if own_model else job.model, own),
            "buffers": (job.buffers[at] if own_model else job.buffers, own),
            "label_counts": (cohort.label_counts[at], 0),
            "size": (cohort.sizes[at], 0),
            "relative_size": (cohort.sizes[at] / float(self.clients.sizes.mean()), 0),
            "initial": (self.setup.w, None),
            "id": (torch.as_tensor(job.cohort.ids[part], device=device), 0),
            "steps": (torch.tensor(steps, device=device, dtype=dtype), 0),
            "lr": (torch.tensor(job.lr, device=device, dtype=dtype), None),
            "secret": (torch.tensor(_secret(job), device=device), None),
        }
        tensors: State = {key: tensor for key, (tensor, _) in both.items()}
        axes: dict[str, Any] = {key: axis for key, (_, axis) in both.items()}
        chance = self._chance(job, [int(job.cohort.ids[k]) for k in part])
        for name, tree in (("kept", kept), ("chance", chance)):
            tensors[name] = tree
            axes[name] = {s: dict.fromkeys(t, 0) for s, t in tree.items()}
        tensors["received"] = {s: rows(t, at) if isinstance(t, PerClient) else dict(t) for s, t in job.sent.items()}
        axes["received"] = {s: dict.fromkeys(t, 0 if isinstance(t, PerClient) else None) for s, t in job.sent.items()}
        return Given(tensors, axes)

    def _chance(self, job: Job, ids: Sequence[int]) -> dict[str, Tree]:
        """What strands draw once for the round, from each client's own stream."""
        drawn: dict[str, Tree] = {}
        for strand in self.job.chain.using("draw_once"):
            purpose = f"once/{strand.name}"
            each = [strand.draw_once(stream(job.seed, purpose, round=job.round, client=i), self.setup) for i in ids]
            drawn[strand.name] = {key: self._tensor(np.stack([e[key] for e in each])) for key in each[0]}
        return drawn

    def _tensor(self, values: np.ndarray) -> Tensor:
        tensor = torch.as_tensor(values).to(self.setup.w.device)
        return tensor.to(self.setup.w.dtype) if tensor.is_floating_point() else tensor

    def _look_ahead(
        self, job: Job, given: Given, ids: Sequence[int], plans: Sequence[Plan]
    ) -> tuple[dict[str, Outputs], int]:
        """Frozen models' outputs on all of the clients' samples, one row each, and how many samples that took.

        Worth it, and exact, where inputs do not change from one epoch to the next: E epochs cost one look, not E.
        """
        chain = self.job.chain
        enough = sum(p.samples for p in plans) >= self.clients.sizes[list(ids)].sum()
        changing = chain.using("batch") or self.clients.samples.augment.active
        if not chain.using("views") or changing or not self.cache_views or not enough:
            return {}, 0
        outputs: dict[str, list[Outputs]] = {}
        for k, client in enumerate(ids):
            for name, (w, buffers) in self.job.views(given[k]).items():
                outputs.setdefault(name, []).append(self._look(w, buffers, self.clients.own(client)))
        cached = {name: Outputs(*map(torch.cat, zip(*parts, strict=True))) for name, parts in outputs.items()}
        return cached, len(cached) * int(self.clients.sizes[list(ids)].sum())

    def _look(self, w: Tensor, buffers: Tensor, index: Tensor) -> Outputs:
        samples, model = self.clients.samples, self.job.model
        parts = [model.predict(w, buffers, samples.inputs(some)) for some in torch.split(index, 1024)]
        return Outputs(*map(torch.cat, zip(*parts, strict=True)))

    def _chunk(self, clients: int) -> int:
        if self.kind == "loop" or clients == 0:
            return min(self.chunk, clients) or max(1, clients)
        if not self.chunk:
            self.chunk = clients_that_fit(self.job, self.clients, self.width)
            if self.chunk < clients:
                log.info("the cohort does not fit in memory at once: stacks of %d clients", self.chunk)
        if self.capacity:
            self.stack.capacity = min(self.chunk, self.capacity)
        return min(self.chunk, clients)

    def _kept_in_memory(self) -> float:
        """Bytes that one kind of a cohort's uploads may take; a user who sets the chunk wants them to be few."""
        return FEW if self.bounded else SHARE * free_memory(self.setup.w.device)


def _secret(job: Job) -> int:
    return int(stream(job.seed, "shared secret", round=job.round).integers(2**62))
