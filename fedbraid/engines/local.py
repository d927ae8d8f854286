"""All clients on one machine: as a stack, or in a loop."""

from __future__ import annotations

import logging
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
from fedbraid.core.tree import PerClient, Tree, grow, rows, stack
from fedbraid.engines.compiled import Compiled
from fedbraid.engines.loop import Loop
from fedbraid.engines.memory import clients_that_fit
from fedbraid.engines.replies import Stacked
from fedbraid.engines.samples import Clients, Samples
from fedbraid.engines.schedule import longest_first
from fedbraid.engines.stack import Given, Stack
from fedbraid.engines.trace import LOOKS
from fedbraid.errors import UserError
from fedbraid.models.outputs import Outputs
from fedbraid.models.recurrence import Lstm

log = logging.getLogger("fedbraid")

Kind = Literal["stack", "loop", "compiled"]

FASTER_ALONE = (nn.modules.conv._ConvNd, Lstm)
"""Layers for which a client per core beats a stack on a CPU: grouped convolutions run at half speed there, and LSTMs
have kernels for single clients only."""


class Store(Protocol):
    """What strands keep on clients between rounds."""

    def read(self, ids: Sequence[int]) -> dict[str, Tree]: ...  # {strand: {name: [C, ...]}}

    def write(self, ids: Sequence[int], kept: dict[str, Tree]) -> None: ...


def choose(kind: Literal["auto", "stack", "loop", "compiled"], model: Model, samples: Samples) -> Kind:
    """The engine for this model on this device; says why when it cannot be the stack."""
    alone = any(isinstance(layer, FASTER_ALONE) for layer in model.training.modules())
    if kind == "loop" or (kind == "auto" and samples.x.device.type == "cpu" and alone):
        return "loop"
    reason = why_not_stacked(model, samples.inputs(torch.zeros(2, dtype=torch.int64, device=samples.x.device)))
    if reason:
        log.warning("clients run one by one: %s", reason)
        return "loop"
    return "compiled" if kind == "compiled" else "stack"


@dataclass(eq=False)
class Local:
    """An engine: `run(job) -> replies`."""

    job: LocalJob
    setup: Setup
    clients: Clients
    work: LocalWork
    store: Store
    kind: Kind
    chunk: int = 0  # clients in a stack at most; 0 = as many as fit in memory
    capacity: int | None = None  # clients in every round, where their number is fixed
    workers: int = 0  # clients trained at once on a CPU, but for the stack; 0 = one per core
    compile_seconds: float = 90.0  # at most, for each library of the compiled stack
    coarse: bool = False  # whether products may be rounded more than float32's are, for speed (CUDA)
    cache_views: bool = True

    def __post_init__(self) -> None:
        sizes = self.clients.sizes
        self.width = min(self.work.batch or int(sizes.max()), int(sizes.max()))
        if self.kind == "loop":
            self.loop = Loop(self.job, self.clients, self.workers)
        elif self.kind == "compiled":
            self.stack: Stack = Compiled(self.job, self.clients, self.capacity, self.workers, self.compile_seconds)
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
        kept = self.store.read(ids)
        if job.kind == "probe":
            return self._probe(job, ids, kept)
        plans = [self.plan(job, i) for i in ids]
        order = longest_first(plans)
        size = self._chunk(len(ids))
        parts = [order[at : at + size] for at in range(0, len(ids), size)]
        trained = [self._train(job, ids, kept, plans, part) for part in parts]
        back = torch.as_tensor(np.argsort(np.concatenate(parts)), device=job.model.device)
        uploads = rows(_joined([t[0] for t in trained]), back)
        if trained[0][1]:
            self.store.write(ids, rows(_joined([t[1] for t in trained]), back))
        frozen = 0 if self.job.model.frozen is None else int(self.job.model.frozen.sum())
        return Stacked(uploads, sum((t[2] for t in trained), Work()), frozen)

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
        self, job: Job, ids: Sequence[int], kept: dict[str, Tree], plans: Sequence[Plan], part: np.ndarray
    ) -> tuple[Tree, dict[str, Tree], Work]:
        """Some of the cohort, longest first: uploads, kept state and work."""
        mine, their_plans = [ids[k] for k in part], [plans[k] for k in part]
        given = self.given(job, kept, part, [len(p) for p in their_plans])
        cached, looked = self._look_ahead(job, given, mine, their_plans)
        if self.kind == "loop":
            ends = np.cumsum(self.clients.sizes[mine])
            tables = [
                {name: Outputs(*(t[end - self.clients.sizes[i] : end] for t in out)) for name, out in cached.items()}
                for i, end in zip(mine, ends, strict=True)
            ]
            one_by_one = self.loop.train([given[k] for k in range(len(part))], mine, their_plans, tables)
            uploads, new = stack([u for u, _, _ in one_by_one]), stack([k for _, k, _ in one_by_one])
            return uploads, new, sum((w for _, _, w in one_by_one), Work(looked))
        self.stack.passed = Work()
        uploads, new = self.stack.train(given, mine, their_plans, cached)
        samples, gradients = sum(p.samples for p in their_plans), self.stack.gradients
        looks = gradients + (0 if cached else self.stack.views)
        return uploads, new, Work(looks * samples + looked, gradients * samples) + self.stack.passed

    def _probe(self, job: Job, ids: Sequence[int], kept: dict[str, Tree]) -> Stacked:
        plans = [self.plan(job, i) for i in ids]
        size = self._chunk(len(ids))
        parts = [np.arange(at, min(at + size, len(ids))) for at in range(0, len(ids), size)]
        answers = [self._probe_part(job, ids, kept, plans, part) for part in parts]
        return Stacked(_joined([a for a, _ in answers]), sum((w for _, w in answers), Work()))

    def _probe_part(
        self, job: Job, ids: Sequence[int], kept: dict[str, Tree], plans: Sequence[Plan], part: np.ndarray
    ) -> tuple[Tree, Work]:
        mine, their_plans = [ids[k] for k in part], [plans[k] for k in part]
        given = self.given(job, kept, part, [len(p) for p in their_plans])
        if self.kind == "loop":
            answers = self.loop.probe([given[k] for k in range(len(part))], mine, their_plans)
            return stack([a for a, _ in answers]), sum((w for _, w in answers), Work())
        self.stack.passed = Work()
        return self.stack.probe(given, mine, their_plans), self.stack.passed

    def given(self, job: Job, kept: dict[str, Tree], part: np.ndarray, steps: Sequence[int]) -> Given:
        """What these clients receive and keep, with or without a client axis."""
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
        for name, tree in (("kept", rows(kept, at)), ("chance", chance)):
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
            return max(1, clients)
        if not self.chunk:
            self.chunk = clients_that_fit(self.job, self.clients, self.width)
            if self.chunk < clients:
                log.info("the cohort does not fit in memory at once: stacks of %d clients", self.chunk)
        if self.capacity:
            self.stack.capacity = min(self.chunk, self.capacity)
        return min(self.chunk, clients)


def _secret(job: Job) -> int:
    return int(stream(job.seed, "shared secret", round=job.round).integers(2**62))


def _joined(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else grow(parts[0], lambda *tensors: torch.cat(tensors), *parts[1:])
