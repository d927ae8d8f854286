"""The engine for clients on one machine: as a stack, compiled, or in a loop."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedbraid.core.client_step import LocalJob, State, Work
from fedbraid.core.memo import Memo
from fedbraid.core.model import Model, why_not_stacked
from fedbraid.core.outputs import Outputs
from fedbraid.core.plan import LocalWork, Plan, make_plan
from fedbraid.core.precision import Precision
from fedbraid.core.round import Job, nothing
from fedbraid.core.strand import Setup
from fedbraid.core.tree import PerClient, Tree, rows
from fedbraid.engines.codegen.trace import DRAWS, LOOKS
from fedbraid.engines.compiled import Compiled
from fedbraid.engines.loop import Loop
from fedbraid.engines.memory import SHARE, clients_that_fit, free_memory
from fedbraid.engines.replies import Stacked, UploadCollector
from fedbraid.engines.samples import Clients, Samples, picked
from fedbraid.engines.stack import Received, Stack
from fedbraid.engines.step_schedule import longest_first
from fedbraid.engines.transfer import to_device
from fedbraid.errors import UserError
from fedbraid.models.lstm import Lstm

log = logging.getLogger("fedbraid")

EngineKind = Literal["stack", "loop", "compiled"]

FASTER_ALONE = (nn.modules.conv._ConvNd, Lstm)
"""Layers for which a client per core beats a stack on a CPU: grouped convolutions run at half speed there, and LSTMs
have kernels for single clients only."""


FEW = 64 << 20
"""Bytes of one upload of the whole cohort that stay in memory if the user sets `engine.chunk`."""


OWN_BUFFERS = "network: buffers"
"""Name of a client's own buffers among the states of strands; no strand can have this name."""

FEW_NAMES = 5
"""Clients that an error names at most."""


class Store(Protocol):
    """State that strands keep on clients between rounds."""

    def read(self, ids: Sequence[int]) -> dict[str, Tree]: ...  # {strand: {name: [C, ...]}}

    def write(self, ids: Sequence[int], kept: dict[str, Tree]) -> None: ...


def choose(kind: Literal["auto", "stack", "loop", "compiled"], model: Model, samples: Samples) -> EngineKind:
    """Return the engine for this model on this device; log the reason if the model cannot be stacked."""
    alone = any(isinstance(layer, FASTER_ALONE) for layer in model.training.modules())
    if kind == "loop" or (kind == "auto" and samples.x.device.type == "cpu" and alone):
        return "loop"
    reason = why_not_stacked(model, samples.inputs(torch.zeros(2, dtype=torch.int64, device=samples.x.device)))
    if reason:
        log.warning("clients run one by one: %s", reason)
        return "loop"
    return "compiled" if kind == "compiled" else "stack"


@dataclass(frozen=True, eq=False)
class CohortSlice:
    """Some clients of a cohort, which train together, longest plan first."""

    places: np.ndarray  # positions in the cohort
    ids: list[int]  # positions among the clients of this engine
    plans: list[Plan]


@dataclass(eq=False)
class Local:
    """The local engine: `run(job) -> replies`."""

    job: LocalJob
    setup: Setup
    clients: Clients
    work: LocalWork
    store: Store
    kind: EngineKind
    chunk: int = 0  # clients trained at a time at most; 0 = as many as fit in memory
    capacity: int | None = None  # clients in every round, where their number is fixed
    workers: int = 0  # clients trained at once on a CPU, but for the stack; 0 = one per core
    compile_seconds: float = 90.0  # at most, for each library
    precision: Precision = "highest"  # of products on CUDA
    cache_views: bool = True
    population_mean: float = 0.0  # mean samples of a client of the population; 0 = all clients are in this engine
    least_width: int = 0  # least length of the batch axis, if clients of other engines need more than these
    own_buffers: bool = False  # each client keeps its buffers; the server's are their mean, for evaluation alone
    secret: int = 0  # mixed into the seed of draws that hide data, so that the run's seed does not reveal them

    def __post_init__(self) -> None:
        self.bounded = self.chunk > 0
        sizes = self.clients.sizes
        self.mean_size = self.population_mean or float(sizes.mean())
        self.width = max(min(self.work.batch or int(sizes.max()), int(sizes.max())), self.least_width)
        self._takes_single_samples = False  # known to, once it has been tried
        self._planned: Memo[list[Plan]] = Memo()
        self._cut: Memo[list[CohortSlice]] = Memo()
        self._knows: Memo[Received] = Memo()
        if self.kind == "loop":
            self.loop = Loop(self.job, self.clients, self.workers, self.compile_seconds)
        elif self.kind == "compiled":
            self.stack: Stack = Compiled(self.job, self.clients, self.capacity, self.workers, self.compile_seconds)
        else:
            self.stack = Stack(self.job, self.clients, self.capacity, self.precision)

    @torch.no_grad()
    def run(self, job: Job, meanwhile: Callable[[], None] = nothing) -> Stacked:
        with explained(self):
            return self._run(job, meanwhile)

    def _run(self, job: Job, meanwhile: Callable[[], None]) -> Stacked:
        ids = self.clients.places(job.cohort.ids)
        parts = self._parts(job.seed, job.round, ids)
        inbox, work = UploadCollector(len(ids), math.inf if len(parts) == 1 else self._kept_in_memory()), Work()
        for part in parts:
            given = self.given(job, self.store.read(self.clients.numbered(part.ids)), part)
            if job.kind == "probe":
                uploads, done = self._probe(given, part)
            else:
                uploads, kept, done = self._train(given, part, meanwhile if part is parts[-1] else nothing)
                if kept:
                    self.store.write(self.clients.numbered(part.ids), kept)
            inbox.add(part.places, uploads)
            work += done
        return inbox.replies(work, self.frozen if job.kind == "train" else 0)

    @property
    def frozen(self) -> int:
        """Number of parameters that are not trained."""
        return 0 if self.job.model.frozen is None else int(self.job.model.frozen.sum())

    def close(self) -> None:
        """Do nothing: no resources outside this object are held."""

    def prepare(self, seed: int, round: int, ids: Sequence[int]) -> None:
        """Plan the next round while the current one is running."""
        if not len(ids):
            return
        parts = self._parts(seed, round, self.clients.places(ids))
        if len(parts) == 1:  # several slices run one after another, so that each has the device's memory for itself
            self._known(seed, round, parts[0])
            if self.kind != "loop":
                self.stack.prepare(parts[0].ids, parts[0].plans)

    def _parts(self, seed: int, round: int, ids: Sequence[int]) -> list[CohortSlice]:
        """Return the cohort in slices of the stack's size, longest plans first (see `step_schedule`)."""

        def make() -> list[CohortSlice]:
            plans = self.plans(seed, round, ids)
            order, size = longest_first(plans), self.stack_size(len(ids))
            places = [order[at : at + size] for at in range(0, len(ids), size)]
            return [CohortSlice(at, [ids[k] for k in at], [plans[k] for k in at]) for at in places]

        return self._cut.of((seed, round, ids), make)

    def plans(self, seed: int, round: int, ids: Sequence[int], width: int = 0) -> list[Plan]:
        """Return the plans of these clients for a round, in batches padded to `width`."""
        key = seed, round, ids, width or self.width
        return self._planned.of(key, lambda: [self.plan(seed, round, i, width) for i in ids])

    def plan(self, seed: int, round: int, client: int, width: int = 0) -> Plan:
        """Return the plan of one client for a round, in batches padded to `width` if one is given."""
        size = int(self.clients.sizes[client])
        return make_plan(
            self.job.chain,
            self.work,
            size,
            width or self.width,
            seed=seed,
            round=round,
            client=self.clients.numbered([client])[0],
            augment=self.clients.samples.augment,
            dropout=self.job.model.random,
            setup=self.setup,
            secret=self.secret,
        )

    def _train(
        self, given: Received, part: CohortSlice, meanwhile: Callable[[], None]
    ) -> tuple[Tree, dict[str, Tree], Work]:
        """Train a slice of the cohort; return uploads, kept state and work."""
        mine, their_plans = part.ids, part.plans
        if self.kind == "loop":
            cached = self._look_ahead(given, mine, their_plans)
            ends = np.cumsum(self.clients.sizes[mine])
            tables = [
                {name: Outputs(*(t[end - self.clients.sizes[i] : end] for t in out)) for name, out in cached.items()}
                for i, end in zip(mine, ends, strict=True)
            ]
            looked = self._looked(mine, their_plans)
            uploads, new, work = self.loop.train(given, mine, their_plans, tables, looked, meanwhile)
            return uploads, self._with_own_buffers(new, uploads), work
        uploads, new, works = self.train_stack(given, mine, their_plans, meanwhile)
        return uploads, new, sum(works, Work())

    def train_stack(
        self, given: Received, ids: Sequence[int], plans: Sequence[Plan], meanwhile: Callable[[], None] = nothing
    ) -> tuple[Tree, dict[str, Tree], list[Work]]:
        """Train one stack of clients, longest first; return uploads, kept state and the work of each client."""
        self._check_single_samples(ids, plans)
        cached = self._look_ahead(given, ids, plans)
        uploads, kept = self.stack.train(given, ids, plans, cached, meanwhile)
        gradients, views = self.stack.gradients, len(cached) or self.stack.views
        works = [
            Work(gradients * plan.samples + views * looked, gradients * plan.samples) + passed
            for plan, looked, passed in zip(plans, self._looked(ids, plans), self.stack.passed, strict=True)
        ]
        return uploads, self._with_own_buffers(kept, uploads), works

    def _with_own_buffers(self, kept: dict[str, Tree], uploads: Tree) -> dict[str, Tree]:
        """Return the state that clients keep, with their buffers [K, Db] if these stay with them."""
        return kept | {OWN_BUFFERS: {"buffers": uploads["buffers"]}} if self.own_buffers else kept

    def _check_single_samples(self, ids: Sequence[int], plans: Sequence[Plan]) -> None:
        """Let torch refuse a batch of one sample where BatchNorm cannot train on it.

        In the stack the number of real samples is a tensor, which no layer can read; torch's own layer decides here on
        one such sample, once. A layer of images normalises over their pixels and takes it.
        """
        model = self.job.model
        if self._takes_single_samples or not model.normalises:
            return
        for client, plan in zip(ids, plans, strict=True):
            if (plan.counts == 1).any():
                one = self.clients.samples.inputs(self.clients.own(client)[:1])
                model.to(self.setup.w.dtype, self.setup.w.device).learn(self.setup.w, self.setup.buffers, one)
                self._takes_single_samples = True
                return

    def _probe(self, given: Received, part: CohortSlice) -> tuple[Tree, Work]:
        if self.kind == "loop":
            return self.loop.probe(given, part.ids, part.plans)
        return self.stack.probe(given, part.ids, part.plans), sum(self.stack.passed, Work())

    def given(self, job: Job, kept: dict[str, Tree], part: CohortSlice) -> Received:
        """Return the inputs of local training of some clients: model, downloads, kept state, sizes and draws.

        Tensors that differ between clients have a client axis; the others are shared, which saves K copies.
        """
        own_model = job.model.dim() == 2
        at = to_device(part.places, job.model.device)
        own = 0 if own_model else None
        sent = {s: rows(t, at) if isinstance(t, PerClient) else dict(t) for s, t in job.sent.items()}
        buffers = job.buffers[at] if own_model else job.buffers
        if self.own_buffers:
            buffers = kept[OWN_BUFFERS]["buffers"]
            kept = {s: tree for s, tree in kept.items() if s != OWN_BUFFERS}
        tensors: State = {
            "start": job.model[at] if own_model else job.model,
            "buffers": buffers,
            "initial": self.setup.w,
            "initial_buffers": self.setup.buffers,
            "lr": job.model.new_full((), job.lr),
            "kept": kept,
            "received": sent,
        }
        axes = {
            "start": own,
            "buffers": 0 if self.own_buffers else own,
            "initial": None,
            "initial_buffers": None,
            "lr": None,
            "kept": {s: dict.fromkeys(t, 0) for s, t in kept.items()},
            "received": {s: dict.fromkeys(t, 0 if isinstance(t, PerClient) else None) for s, t in job.sent.items()},
        }
        known = self._known(job.seed, job.round, part)
        return Received(known.tensors | tensors, known.axes | axes)

    def _known(self, seed: int, round: int, part: CohortSlice) -> Received:
        """Return sizes, label counts, steps and draws of a slice; cached, since `prepare` computes them ahead."""
        return self._knows.of((seed, round, part), lambda: self._find_out(seed, round, part.ids, part.plans))

    def _find_out(self, seed: int, round: int, ids: Sequence[int], plans: Sequence[Plan]) -> Received:
        device, dtype = self.setup.w.device, self.setup.w.dtype
        here, draws = to_device(np.array(ids), device), self._drawn_once(plans)
        sizes = to_device(self.clients.sizes[list(ids)].astype(np.float64), device, dtype)
        tensors: State = {
            "label_counts": picked(self.clients.label_counts, here),
            "size": sizes,
            "relative_size": sizes / self.mean_size,
            "steps": to_device(np.array([len(plan) for plan in plans], dtype=np.float64), device, dtype),
            "draws": draws,
        }
        axes: dict[str, Any] = dict.fromkeys(tensors, 0)
        return Received(tensors, axes | {"draws": {s: dict.fromkeys(t, 0) for s, t in draws.items()}})

    def _drawn_once(self, plans: Sequence[Plan]) -> dict[str, Tree]:
        """Return what strands drew once for the round, with a client axis."""
        w = self.setup.w
        return {
            name: {key: to_device(np.stack([p.once[name][key] for p in plans]), w.device, w.dtype) for key in first}
            for name, first in plans[0].once.items()
            if first
        }

    def _look_ahead(self, given: Received, ids: Sequence[int], plans: Sequence[Plan]) -> dict[str, Outputs]:
        """Return the outputs of frozen models on all samples of these clients, a row for each sample.

        Exact because the inputs are the same in every epoch; E epochs then cost one forward pass instead of E. Empty if
        inputs change, or if the steps visit fewer samples than this would.
        """
        if not self.job.chain.using("views") or not self._can_look_ahead:
            return {}
        if sum(p.samples for p in plans) < self.clients.sizes[list(ids)].sum():
            return {}
        outputs: dict[str, list[Outputs]] = {}
        for k, client in enumerate(ids):
            for name, (w, buffers) in self.job.views(given[k]).items():
                outputs.setdefault(name, []).append(self._look(w, buffers, self.clients.own(client)))
        return {name: Outputs(*map(torch.cat, zip(*parts, strict=True))) for name, parts in outputs.items()}

    @property
    def _can_look_ahead(self) -> bool:
        """Whether a sample's input is the same in every step."""
        return self.cache_views and not self.job.chain.using("batch") and not self.clients.samples.augment.active

    def _looked(self, ids: Sequence[int], plans: Sequence[Plan]) -> list[int]:
        """Return for each client the samples that pass through a frozen model: its steps' or, if fewer, its own.

        Each client counts as it would alone: a method's cost must not depend on which clients share a stack.
        """
        if not self._can_look_ahead:
            return [plan.samples for plan in plans]
        return [min(plan.samples, int(self.clients.sizes[i])) for i, plan in zip(ids, plans, strict=True)]

    def _look(self, w: Tensor, buffers: Tensor, index: Tensor) -> Outputs:
        samples, model = self.clients.samples, self.job.model
        parts = [model.predict(w, buffers, samples.inputs(some)) for some in torch.split(index, 1024)]
        return Outputs(*map(torch.cat, zip(*parts, strict=True)))

    def stack_size(self, clients: int) -> int:
        """Return the number of clients, of `clients` in all, that go into one stack."""
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
        """Return the bytes that one upload of the whole cohort may take in memory before it goes to a file."""
        return FEW if self.bounded else SHARE * free_memory(self.setup.w.device)


@contextmanager
def explained(local: Local) -> Iterator[None]:
    """Translate torch's errors about hooks and batches into UserErrors."""
    try:
        yield
    except RuntimeError as error:
        if "data-dependent control flow" in str(error) or ".item()" in str(error):
            raise UserError(LOOKS) from error
        if "called random operation" in str(error):
            raise UserError(DRAWS) from error
        raise
    except ValueError as error:
        if "more than 1 value per channel" in str(error):
            raise UserError(f"BatchNorm needs two samples or more in a batch, and {_batch_of_one(local)}") from error
        raise


def _batch_of_one(local: Local) -> str:
    """Name the clients with a batch of one sample, and the remedy (`drop_last` keeps a client's only sample)."""
    sizes, batch = local.clients.sizes, local.work.batch
    if len(alone := np.flatnonzero(sizes == 1)):
        return (
            f"{_named(local, alone)} one sample in all; give each client more, such as with a larger min_size of the "
            "partition, or take a network without BatchNorm"
        )
    if batch == 1:
        return "local.batch is 1; set it to 2 or more"
    return f"{_named(local, np.flatnonzero(sizes % (batch or 1) == 1))} one left over; set local.drop_last=true"


def _named(local: Local, places: np.ndarray) -> str:
    numbers = ", ".join(map(str, local.clients.numbered(places[:FEW_NAMES])))
    if not len(places):
        return "a client has"
    if len(places) == 1:
        return f"client {numbers} has"
    return f"clients {numbers}{', …' if len(places) > FEW_NAMES else ''} have"
