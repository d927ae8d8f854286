"""Messages between the driver and the workers of a cluster, as NumPy arrays, which Ray shares without copies.

The driver packs, the worker unpacks to its own device. The part of a job that all workers receive is packed once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.client_step import LocalJob, Tally, Work
from fedbraid.core.plan import LocalWork
from fedbraid.core.precision import Precision
from fedbraid.core.round import Job
from fedbraid.core.strand import Cohort, Setup
from fedbraid.core.tree import PerClient, Tree, grow
from fedbraid.engines.local_engine import EngineKind, Local
from fedbraid.engines.replies import Stacked
from fedbraid.engines.samples import Clients, Samples
from fedbraid.storage.client_store import Kept

T = TypeVar("T", Samples, Cohort, Setup)
Arrays = dict[str, np.ndarray]
HOST = torch.device("cpu")

SMALL = 512
"""Bytes of a client's upload up to which it is part of the report: values for the log, weights, short vectors."""


@dataclass(frozen=True, eq=False)
class SetupMessage:
    """The setup of a run, sent to each worker once."""

    job: LocalJob
    setup: Setup
    work: LocalWork
    kind: EngineKind
    device: str  # the kind of device that this engine was chosen for
    chunk: int
    precision: Precision
    compile_seconds: float
    population_mean: float
    least_width: int
    own_buffers: bool
    everybody: bool  # whether all clients take part in every round
    blank: Kept
    directory: Path | None  # of clients' states
    on_disk: bool

    @staticmethod
    def of(local: Local, directory: Path | None, on_disk: bool, blank: Kept) -> SetupMessage:
        """Return the setup of `local`, the driver's engine with all clients."""
        job, setup = local.job, local.setup
        return SetupMessage(
            replace(job, model=job.model.to(setup.w.dtype, HOST), tally=Tally()),
            moved(setup, HOST),
            local.work,
            local.kind,
            setup.w.device.type,
            local.chunk if local.bounded else 0,
            local.precision,
            local.compile_seconds,
            local.mean_size,
            local.width,
            local.own_buffers,
            setup.cohort == setup.population,
            grow(blank, Tensor.cpu),
            directory,
            on_disk,
        )


@dataclass(frozen=True, eq=False)
class ShareData:
    """The clients of a share with their samples."""

    like: Samples  # without the samples
    x: np.ndarray
    y: np.ndarray
    offsets: np.ndarray
    label_counts: np.ndarray
    numbers: np.ndarray

    @staticmethod
    def of(clients: Clients, numbers: np.ndarray) -> ShareData:
        some = clients.only(numbers.tolist())
        samples = some.samples
        like = moved(replace(samples, x=samples.x[:0], y=samples.y[:0]), HOST)
        return ShareData(like, array(samples.x), array(samples.y), some.offsets, array(some.label_counts), numbers)

    def clients(self, device: torch.device) -> Clients:
        samples = replace(moved(self.like, device), x=tensor(self.x, device), y=tensor(self.y, device))
        order = torch.arange(len(self.y), device=device)
        counts = tensor(self.label_counts, device)
        return Clients(samples, order, self.offsets.copy(), counts, self.numbers.copy())


@dataclass(frozen=True, eq=False)
class SharedJob:
    """The part of a job that is equal for all clients."""

    job: dict[str, Any]  # kind, round, lr, seed, already
    model: Arrays  # {"model", "buffers"}, or nothing where each client is sent its own
    sent: dict[str, Arrays]

    @staticmethod
    def of(job: Job) -> SharedJob:
        reports = {name: getattr(job, name) for name in ("kind", "round", "lr", "seed", "already")}
        own = job.model.dim() == 2
        model = {} if own else {"model": array(job.model), "buffers": array(job.buffers)}
        return SharedJob(reports, model, {s: arrays(t) for s, t in job.sent.items() if not isinstance(t, PerClient)})


@dataclass(frozen=True, eq=False)
class ShareJob:
    """The part of a job for the clients of one share: their numbers and their rows of per-client downloads."""

    cohort: Cohort
    model: Arrays
    sent: dict[str, Arrays]

    @staticmethod
    def of(job: Job, places: np.ndarray) -> ShareJob:
        some = job.only(places)
        model = {"model": array(some.model), "buffers": array(some.buffers)} if some.model.dim() == 2 else {}
        return ShareJob(
            moved(some.cohort, HOST), model, {s: arrays(t) for s, t in some.sent.items() if isinstance(t, PerClient)}
        )

    def job(self, common: SharedJob, device: torch.device) -> Job:
        """Return the job for these clients, on their device."""
        model = tensors(common.model | self.model, device)
        sent: dict[str, Tree | PerClient] = {s: tensors(t, device) for s, t in common.sent.items()}
        sent |= {s: PerClient(tensors(t, device)) for s, t in self.sent.items()}
        return Job(cohort=self.cohort, model=model["model"], buffers=model["buffers"], sent=sent, **common.job)


@dataclass(frozen=True, eq=False)
class ShareReport:
    """A report of a finished job with its small uploads. Larger ones stay on the worker until they are read."""

    work: Work
    bytes_up: int
    seconds: float
    small: Arrays  # [clients, …]
    large: frozenset[str]

    @staticmethod
    def of(replies: Stacked, began: float) -> ShareReport:
        clients = max((len(value) for value in replies.uploads.values()), default=1)
        small = {k: array(v) for k, v in replies.uploads.items() if v.numel() * v.element_size() <= SMALL * clients}
        large = frozenset({*replies.uploads, *replies.filed} - small.keys())
        return ShareReport(replies.work, replies.bytes_up, perf_counter() - began, small, large)


def array(value: Tensor) -> np.ndarray:
    held: np.ndarray = value.detach().cpu().numpy()
    return held


def arrays(tree: Tree) -> Arrays:
    return {key: array(value) for key, value in tree.items()}


def tensor(value: np.ndarray, device: torch.device) -> Tensor:
    """Return a tensor with memory of its own: arrays from Ray's object store are read-only and shared."""
    return torch.from_numpy(value.copy()).to(device)


def tensors(tree: Arrays, device: torch.device) -> Tree:
    return {key: tensor(value, device) for key, value in tree.items()}


def moved(thing: T, device: torch.device) -> T:
    """Return a dataclass with its tensors on `device`."""
    values = {f.name: getattr(thing, f.name) for f in fields(thing)}
    here: dict[str, Any] = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
    return replace(thing, **here)
