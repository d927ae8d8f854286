"""A worker of a cluster: holds shares of a run's clients, trains the sampled ones, keeps their replies and states.

It does not depend on the transport. Replies stay until the next job. States are written on a thread of their own, into
segments that are never changed afterwards, so that a job can be repeated from the states before it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fedbraid.core.tree import grow
from fedbraid.engines.cpu import keep_freed_memory
from fedbraid.engines.local_engine import Local, choose
from fedbraid.engines.ray.serialization import (
    SetupMessage,
    ShareData,
    SharedJob,
    ShareJob,
    ShareReport,
    array,
    moved,
    tensor,
)
from fedbraid.engines.replies import Stacked
from fedbraid.errors import UserError
from fedbraid.storage.client_store import ClientStore
from fedbraid.version import __version__


@dataclass(frozen=True)
class WorkerInfo:
    """Host, process and versions of a worker."""

    host: str
    process: int
    threads: int
    fedbraid: str
    torch: str


class Worker:
    """Holds shares by name; `fetch` retrieves the result of another worker's call."""

    def __init__(self, device: str, fetch: Callable[[Any], np.ndarray]) -> None:
        self.device, self.fetch = torch.device(device), fetch
        self.shares: dict[str, ClientShare] = {}
        if self.device.type == "cpu":
            torch.set_num_threads(1)  # a worker for each core
            keep_freed_memory()

    def ping(self) -> WorkerInfo:
        return WorkerInfo(socket.gethostname(), os.getpid(), torch.get_num_threads(), __version__, torch.__version__)

    def hold(
        self, share: str, setup_message: SetupMessage, held: ShareData, segments: Sequence[str], mark: str, marker: str
    ) -> list[str]:
        """Load a share with the states in `segments`; return the segments that still hold a current state."""
        self.shares.pop(share, None)  # makes room
        if setup_message.directory is not None:
            _check_shared_folder(setup_message.directory, marker)
        self.shares[share] = ClientShare(setup_message, held, self.device, segments, mark)
        return self.shares[share].segments

    def drop(self, share: str) -> None:
        self.shares.pop(share, None)

    def work(self, share: str, common: SharedJob, own: ShareJob) -> ShareReport:
        return self.shares[share].work(common, own)

    def prepare(self, share: str, seed: int, round: int, ids: Sequence[int]) -> None:
        self.shares[share].local.prepare(seed, round, ids)

    def each(self, share: str, key: str) -> np.ndarray:
        return self.shares[share].each(key)

    def sum(self, share: str, key: str, weights: np.ndarray, others: Sequence[Any]) -> np.ndarray:
        """Return the weighted sum over this share's clients, plus the partial sums `others` in their order.

        The order is fixed by the tree over the shares, so that rounding does not depend on which worker was faster.
        """
        total = self.shares[share].sum(key, weights)
        for other in others:
            total = total + self.fetch(other)
        return total

    def kept(self, share: str) -> list[str]:
        return self.shares[share].kept()


class ClientShare:
    """A share of the clients with their states and their replies to the latest job."""

    def __init__(
        self, setup_message: SetupMessage, held: ShareData, device: torch.device, segments: Sequence[str], mark: str
    ) -> None:
        self.device, self.mark = device, mark
        job = replace(setup_message.job, model=setup_message.job.model.to(setup_message.setup.w.dtype, device))
        clients = held.clients(device)
        self.store = ClientStore(
            grow(setup_message.blank, lambda t: t.to(device)),
            setup_message.directory,
            on_disk=setup_message.on_disk,
            mark=f"{mark}-",
        )
        self.store.restore(segments, set(held.numbers.tolist()))
        if device.type == "cuda":
            coarse = setup_message.precision != "highest"
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = coarse
        self.local = Local(
            job,
            moved(setup_message.setup, device),
            clients,
            setup_message.work,
            self.store,
            setup_message.kind if device.type == setup_message.device else choose("auto", job.model, clients.samples),
            chunk=setup_message.chunk,
            capacity=len(clients) if setup_message.everybody else None,
            workers=1,
            compile_seconds=setup_message.compile_seconds,
            precision=setup_message.precision,
            population_mean=setup_message.population_mean,
            least_width=setup_message.least_width,
            own_buffers=setup_message.own_buffers,
        )
        self.replies: Stacked | None = None
        self._writer = ThreadPoolExecutor(1)
        self._saving: Future[list[str]] | None = None

    def work(self, common: SharedJob, own: ShareJob) -> ShareReport:
        """Run a job; writing the clients' new states begins afterwards, beside whatever comes next."""
        began = perf_counter()
        self.replies = None  # makes room
        job = own.job(common, self.device)
        replies = self.replies = self.local.run(job)
        reports = ShareReport.of(replies, began)
        if job.kind == "train" and self.store.blank:
            self._saving = self._writer.submit(self._save, job.round)
        return reports

    def _save(self, round: int) -> list[str]:
        """Write the states after a round; return their segments. Old segments stay: a checkpoint may need them."""
        segments = self.store.save(f"clients-{round + 1:06d}-{self.mark}.safetensors")
        self.store.forget(segments)
        return segments

    @property
    def segments(self) -> list[str]:
        return [name for name, segment in self.store.segments.items() if segment.live]

    def kept(self) -> list[str]:
        assert self._saving is not None
        return self._saving.result()

    def each(self, key: str) -> np.ndarray:
        assert self.replies is not None
        return array(self.replies.each(key))

    def sum(self, key: str, weights: np.ndarray) -> np.ndarray:
        assert self.replies is not None
        return array(self.replies.sum(key, tensor(weights, self.device)))


def _check_shared_folder(directory: Path, marker: str) -> None:
    """Check that this machine sees the driver's folder: the driver has just created the file `marker` in it."""
    if not (directory / marker).exists():
        raise UserError(
            f"{socket.gethostname()} does not see the driver's folder {directory}, where clients' states are kept; "
            "give --out on a file system that all nodes of the cluster share"
        )
    if not os.access(directory, os.W_OK):
        raise UserError(f"{socket.gethostname()} may not write to {directory}, where clients' states are kept")
