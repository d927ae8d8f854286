"""A worker elsewhere: holds shares of a run's clients, trains those that are asked, keeps their replies and states.

It knows nothing of how it is called. Replies stay until the next job; states are written beside the other work.
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
from fedbraid.engines.ray.serialization import Common, Held, Kit, Own, Told, array, moved, tensor
from fedbraid.engines.replies import Stacked
from fedbraid.errors import UserError
from fedbraid.storage.client_store import ClientStore
from fedbraid.version import __version__


@dataclass(frozen=True)
class Facts:
    """Who a worker is."""

    host: str
    process: int
    threads: int
    fedbraid: str
    torch: str


class Worker:
    """Shares by name; `fetch` gets what another worker has made."""

    def __init__(self, device: str, fetch: Callable[[Any], np.ndarray]) -> None:
        self.device, self.fetch = torch.device(device), fetch
        self.shares: dict[str, Holding] = {}
        if self.device.type == "cpu":
            torch.set_num_threads(1)  # a worker for each core
            keep_freed_memory()

    def hello(self) -> Facts:
        return Facts(socket.gethostname(), os.getpid(), torch.get_num_threads(), __version__, torch.__version__)

    def hold(self, share: str, kit: Kit, held: Held, segments: Sequence[str], mark: str, sign: str) -> list[str]:
        """Take a share, with the states that `segments` have; those of them that count."""
        self.shares.pop(share, None)  # makes room
        if kit.directory is not None:
            _check_seen(kit.directory, sign)
        self.shares[share] = Holding(kit, held, self.device, segments, mark)
        return self.shares[share].segments

    def drop(self, share: str) -> None:
        self.shares.pop(share, None)

    def work(self, share: str, common: Common, own: Own) -> Told:
        return self.shares[share].work(common, own)

    def prepare(self, share: str, seed: int, round: int, ids: Sequence[int]) -> None:
        self.shares[share].local.prepare(seed, round, ids)

    def each(self, share: str, key: str) -> np.ndarray:
        return self.shares[share].each(key)

    def sum(self, share: str, key: str, weights: np.ndarray, others: Sequence[Any]) -> np.ndarray:
        """The weighted sum over this share's clients and those of `others`, which are added in their order."""
        total = self.shares[share].sum(key, weights)
        for other in others:
            total = total + self.fetch(other)
        return total

    def kept(self, share: str) -> list[str]:
        return self.shares[share].kept()


class Holding:
    """A share of the clients, their states, and their replies to the latest job."""

    def __init__(self, kit: Kit, held: Held, device: torch.device, segments: Sequence[str], mark: str) -> None:
        self.device, self.mark = device, mark
        job = replace(kit.job, model=kit.job.model.to(kit.setup.w.dtype, device))
        clients = held.clients(device)
        self.store = ClientStore(
            grow(kit.blank, lambda t: t.to(device)), kit.directory, on_disk=kit.on_disk, mark=f"{mark}-"
        )
        self.store.restore(segments, set(held.numbers.tolist()))
        if device.type == "cuda":
            coarse = kit.precision != "highest"
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = coarse
        self.local = Local(
            job,
            moved(kit.setup, device),
            clients,
            kit.work,
            self.store,
            kit.kind if device.type == kit.device else choose("auto", job.model, clients.samples),
            chunk=kit.chunk,
            capacity=len(clients) if kit.everybody else None,
            workers=1,
            compile_seconds=kit.compile_seconds,
            precision=kit.precision,
            population_mean=kit.population_mean,
            least_width=kit.least_width,
        )
        self.replies: Stacked | None = None
        self._pen = ThreadPoolExecutor(1)
        self._saving: Future[list[str]] | None = None

    def work(self, common: Common, own: Own) -> Told:
        """Do a job. What clients keep of their training is then on its way to a file."""
        began = perf_counter()
        self.replies = None  # makes room
        job = own.job(common, self.device)
        replies = self.replies = self.local.run(job)
        told = Told.of(replies, began)
        if job.kind == "train" and self.store.blank:
            self._saving = self._pen.submit(self._save, job.round)
        return told

    def _save(self, round: int) -> list[str]:
        """The segments that hold the states after a round. Old ones stay: a checkpoint may list them."""
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


def _check_seen(directory: Path, sign: str) -> None:
    """That this is the directory in which the driver has just put up a sign."""
    if not (directory / sign).exists():
        raise UserError(
            f"{socket.gethostname()} does not see the driver's folder {directory}, where clients' states are kept; "
            "give --out on a file system that all nodes of the cluster share"
        )
    if not os.access(directory, os.W_OK):
        raise UserError(f"{socket.gethostname()} may not write to {directory}, where clients' states are kept")
