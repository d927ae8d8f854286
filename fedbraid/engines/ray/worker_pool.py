"""The worker pool: connected workers, starting workers, and replacements for lost ones.

Workers are started and called through a `ClusterBackend`; `engines/ray/actors.py` implements it with Ray.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

import torch

from fedbraid.engines.ray.worker import WorkerInfo
from fedbraid.errors import UserError
from fedbraid.version import __version__

log = logging.getLogger("fedbraid")

GRACE = 15.0
"""Seconds to wait for a replacement while other workers could take over its shares."""
SOON = 1e-3
"""Seconds of a wait that only polls."""
TRIES = 10
"""Consecutive workers that may fail before they connect."""


class WorkerLost(Exception):
    """Raised if a worker, or a result that it held, is lost."""


class ClusterBackend(Protocol):
    """The interface to a cluster's software. A reference stands for the future result of a call."""

    def room(self) -> int:
        """Return the number of workers that the cluster can hold now."""
        ...

    def start(self) -> Any: ...

    def stop(self, worker: Any) -> None: ...

    def call(self, worker: Any, method: str, *args: Any) -> Any:
        """Call a worker, which serves calls in order; return a reference. References are valid arguments."""
        ...

    def put(self, value: Any, own: Sequence[type] = ()) -> Any:
        """Return a reference to `value` for many calls. The code of the user's classes `own` is sent along."""
        ...

    def get(self, reference: Any) -> Any:
        """Wait for the result of a reference. Raises WorkerLost, or the error that the call ended in."""
        ...

    def ready(self, references: Sequence[Any], seconds: float) -> list[Any]:
        """Return the references that are ready, after waiting for the first one at most `seconds`."""
        ...


@dataclass(eq=False)
class WorkerHandle:
    """The driver's record of one worker."""

    worker: Any
    ping: Any  # the reference to its first answer
    info: WorkerInfo | None = None  # once it is here
    cost: float = 0.0  # samples that it was measured with, the latest count most …
    seconds: float = 0.0  # … and how long they took

    def measured(self, cost: float, seconds: float) -> None:
        self.cost, self.seconds = FORGET * self.cost + cost, FORGET * self.seconds + seconds

    def __str__(self) -> str:
        return f"{self.info.host}, process {self.info.process}" if self.info else "a worker that never came"


FORGET = 0.8
"""Weight of a measurement one round later."""


@dataclass(eq=False)
class WorkerPool:
    """The workers of a cluster: as many as wanted, or as it can hold (0)."""

    remote: ClusterBackend
    wanted: int = 0
    patience: float = 300.0  # seconds that the first workers, and missing ones, are waited for
    connected: list[WorkerHandle] = field(default_factory=list)
    starting: list[WorkerHandle] = field(default_factory=list)
    failed: int = 0  # workers that were lost before they came, one after the other
    users: int = 0

    def gather(self, most: int) -> None:
        """Start the workers at the first call, at most `most`; later calls accept those that connected in between."""
        if self.connected or self.starting:
            self._accept_started(SOON)
            return
        self.wanted = min(self.wanted or self.remote.room(), most)
        self.starting = [self._start_worker() for _ in range(self.wanted)]
        until = monotonic() + self.patience
        while self.starting and (left := until - monotonic()) > 0:
            self._accept_started(left)
        self._check_any()
        hosts = {handle.info.host for handle in self.connected if handle.info}
        log.info("workers: %d, on machines: %d", len(self.connected), len(hosts))
        if self.starting:
            log.warning("%d others have not come yet; the run begins without", len(self.starting))

    def wait_for_others(self, taken: Counter[WorkerHandle], shares: int) -> None:
        """Wait a short time for as many idle workers as there are shares to place."""
        until = monotonic() + GRACE
        while self.starting and self._idle(taken) < shares and (left := until - monotonic()) > 0:
            self._accept_started(left)

    def wait_for_any(self) -> None:
        until = monotonic() + self.patience
        while self.starting and not self.connected and (left := until - monotonic()) > 0:
            self._accept_started(left)
        self._check_any()

    def least_loaded(self, taken: Counter[WorkerHandle]) -> WorkerHandle:
        """Return the worker with the fewest shares."""
        return min(self.connected, key=taken.__getitem__)

    def _idle(self, taken: Counter[WorkerHandle]) -> int:
        return sum(handle not in taken for handle in self.connected)

    def replace(self, lost: WorkerHandle) -> None:
        """Start another worker in place of a lost one."""
        if lost in self.connected:
            log.warning("a worker is lost (%s); its clients go on elsewhere", lost)
            self.connected.remove(lost)
            self.remote.stop(lost.worker)
            self.starting.append(self._start_worker())

    def get(self, reference: Any) -> Any:
        return self.remote.get(reference)

    def call(self, handle: WorkerHandle, method: str, *args: Any) -> Any:
        return self.remote.call(handle.worker, method, *args)

    def leave(self) -> None:
        """Sign off one run; the last one stops the workers."""
        self.users -= 1
        if self.users == 0:
            for handle in (*self.connected, *self.starting):
                self.remote.stop(handle.worker)
            self.connected.clear()
            self.starting.clear()

    def _start_worker(self) -> WorkerHandle:
        worker = self.remote.start()
        return WorkerHandle(worker, self.remote.call(worker, "ping"))

    def _accept_started(self, seconds: float) -> None:
        """Accept workers that have started, after waiting for the first one at most `seconds`."""
        if not self.starting:
            return
        ready = self.remote.ready([handle.ping for handle in self.starting], seconds)
        for handle in [handle for handle in self.starting if handle.ping in ready]:
            self.starting.remove(handle)
            try:
                handle.info = self.remote.get(handle.ping)
            except WorkerLost as loss:
                self.failed += 1
                if self.failed > TRIES:
                    raise UserError(f"workers are lost as soon as they start, the last one to this: {loss}") from None
                self.starting.append(self._start_worker())
                continue
            _check_versions(handle.info)
            self.failed = 0
            self.connected.append(handle)

    def _check_any(self) -> None:
        if not self.connected:
            raise UserError(
                f"no worker of the cluster came within {self.patience:g} s; look at `ray status`, ask for less per "
                "worker, or set engine.patience higher; a run that was recorded goes on with --resume"
            )


def _check_versions(info: WorkerInfo) -> None:
    for name, here, there in (("fedbraid", __version__, info.fedbraid), ("torch", torch.__version__, info.torch)):
        if here.split("+")[0] != there.split("+")[0]:
            raise UserError(f"{info.host} has {name} {there} and the driver has {here}; install the same everywhere")
