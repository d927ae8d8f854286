"""The Ray engine: each worker of a cluster holds a share of the clients and trains those that are sampled.

A job is open until the next one comes. Until then its replies stay with the workers, and whatever is lost with a
worker is made anew: another one takes the share, with the states as they were before the job, and does its part of the
job again. Sums are taken in a tree over the shares, in a fixed order, so that nothing depends on who was late or lost.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from fedbraid.config.schema import EngineConfig
from fedbraid.core.client_step import Work
from fedbraid.core.round import Job, nothing
from fedbraid.engines.base import Engine
from fedbraid.engines.local_engine import Local
from fedbraid.engines.ray.actors import RayRemote
from fedbraid.engines.ray.placement import Ints, assign_clients, costs, rebalance, seconds, worth_moving
from fedbraid.engines.ray.remote_states import RemoteStates
from fedbraid.engines.ray.serialization import SetupMessage, ShareData, SharedJob, ShareJob, ShareReport, array, tensor
from fedbraid.engines.ray.worker_pool import WorkerHandle, WorkerLost, WorkerPool
from fedbraid.engines.replies import Stacked
from fedbraid.engines.transfer import to_device
from fedbraid.errors import UserError
from fedbraid.storage.client_store import ClientStore

log = logging.getLogger("fedbraid")

TRANSFERS_AT_ONCE = 8
"""Shares that are sent to workers at a time; each is a copy of its clients' samples in the driver's memory."""
TRIES = 10
"""Times that a share may be lost in one job. A job that kills its workers (out of memory) must end."""
ROUNDS_BETWEEN_MOVES = 10
"""Rounds between moves of clients to other workers, so that speeds are measured before they decide again."""


def spread(
    local: Local, states: ClientStore, config: EngineConfig, beside: Engine | None = None
) -> tuple[Cluster, RemoteStates]:
    """Return the engine that trains the clients of `local` on a cluster, and the store of their states.

    Workers are shared with the engine `beside` if it has the same configuration.
    """
    store = RemoteStates(states.blank, states.directory, on_disk=states.on_disk)
    if isinstance(beside, Cluster) and beside.config == config:
        return Cluster(local, store, beside.pool, config), store
    may_use_gpus = config.device != "cpu"
    remote = RayRemote(config.address, config.gpus_per_worker, may_use_gpus, least=config.workers)
    return Cluster(local, store, WorkerPool(remote, config.workers, config.patience), config), store


@dataclass(eq=False)
class OpenJob:
    """A job and its progress by share. It stays open until the next job: a lost share is repeated until then."""

    job: Job
    common: Any  # a reference
    places: dict[int, np.ndarray]  # by share, those of its clients in the cohort
    reports: dict[int, ShareReport] = field(default_factory=dict)  # by those that are done with it
    kept: dict[int, list[str]] = field(default_factory=dict)  # segments with the states after it
    losses: Counter[int] = field(default_factory=Counter)
    open: bool = True


@dataclass(eq=False)
class Cluster:
    """The engine of a cluster: `run(job) -> replies`."""

    local: Local  # has all clients and trains none of them; workers' engines are made like it
    store: RemoteStates
    pool: WorkerPool
    config: EngineConfig
    kind: Literal["ray"] = "ray"

    def __post_init__(self) -> None:
        self.name = uuid4().hex[:8]
        self.cost = costs(self.local.clients.sizes, self.local.work)
        self.home: Ints = np.zeros(0, dtype=np.int64)  # [clients] the share of each, once it is known …
        self.members: dict[int, Ints] = {}  # … and the other way round
        self.hosts: dict[int, WorkerHandle] = {}  # who holds a share
        self.open_job: OpenJob | None = None
        self.setup_message: Any = None  # a reference
        self.moved_in = 0  # the round since which clients are where they are …
        self.move = 0.0  # … and the seconds that it took to bring them there
        self.store.settle, self.store.release = self.settle, self._release
        self.closed = False
        self.pool.users += 1

    # --- the engine

    @torch.no_grad()
    def run(self, job: Job, meanwhile: Callable[[], None] = nothing) -> RemoteReplies:
        self.settle()
        self.pool.gather(len(self.cost))
        if not len(self.home):
            self._share_out(assign_clients(self.cost, np.ones(self.pool.wanted)), job.round)
        self._balance(job)
        self.open_job = OpenJob(job, self.pool.remote.put(SharedJob.of(job)), group_by_share(self.home[job.cohort.ids]))
        self._complete(self.open_job, meanwhile)
        self._measure(self.open_job)
        return RemoteReplies(self, self.open_job)

    def prepare(self, seed: int, round: int, ids: Sequence[int]) -> None:
        """Let workers plan the next round as soon as they have finished the current one."""
        numbers = np.array(ids, dtype=np.int64)
        for share, places in group_by_share(self.home[numbers]).items():
            if share in self.hosts:
                self._ask(share, "prepare", seed, round, numbers[places].tolist())

    def settle(self) -> None:
        """Close the latest job, once the states after it are in files.

        Invariant: until then the segments from before the job are kept, so that any share can be repeated.
        """
        open_job = self.open_job
        if open_job is None or not open_job.open:
            return
        if self._writes(open_job):
            while missing := [share for share in open_job.places if share not in open_job.kept]:
                self._complete(open_job)
                open_job.kept |= self._answers(open_job, missing, "kept")
            self.store.advance(open_job.kept, len(self.members))
        open_job.open, open_job.common = False, None

    def close(self) -> None:
        """Release the run's shares, and the workers unless another run uses them."""
        if not self.closed:
            self.closed = True
            self._let_finish()
            self._release()
            self.store.close()
            self.pool.leave()

    def _let_finish(self) -> None:
        """Wait for states that are being written, unless the job itself is unfinished."""
        open_job = self.open_job
        if (
            open_job is None
            or not open_job.open
            or not self._writes(open_job)
            or len(open_job.reports) < len(open_job.places)
        ):
            return
        for call in [self._ask(share, "kept") for share in open_job.places]:
            with suppress(WorkerLost):
                self.pool.get(call)

    def _writes(self, open_job: OpenJob) -> bool:
        return open_job.job.kind == "train" and bool(self.store.blank)

    # --- what replies ask for

    def uploads_by_share(self, open_job: OpenJob, key: str) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each share's part of an upload; one part at a time is in the driver's memory."""
        left = list(open_job.places)
        while left:
            self._complete(open_job)
            small = {share: reports.small[key] for share, reports in open_job.reports.items() if key in reports.small}
            calls = {s: (self.hosts[s], self._ask(s, "each", key)) for s in left if s not in small}
            for share in list(left):
                try:
                    yield share, small[share] if share in small else self.pool.get(calls[share][1])
                    left.remove(share)
                except WorkerLost as loss:
                    self._handle_loss(calls[share][0], loss)

    def weighted_sum(self, open_job: OpenJob, key: str, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum of an upload over all clients; partial sums travel between workers along a tree."""
        shares = list(open_job.places)
        while True:
            self._complete(open_job)
            made: dict[int, Any] = {}
            for at in reversed(range(len(shares))):  # a worker that has several does first what others wait for
                share, others = shares[at], [made[child] for child in children(at, len(shares))]
                made[at] = self._ask(share, "sum", key, weights[open_job.places[share]], others)
            try:
                total: np.ndarray = self.pool.get(made[0])
                return total
            except WorkerLost as loss:
                self._ping_workers(open_job, loss)

    # --- faults

    def _complete(self, open_job: OpenJob, meanwhile: Callable[[], None] = nothing) -> None:
        """Wait until every share has done the job; repeat lost shares on other workers."""
        if not open_job.open:
            raise RuntimeError("replies are gone once the next job is under way or the state is saved")
        while waiting := [share for share in open_job.places if share not in open_job.reports]:
            self._place_shares(waiting)
            open_job.reports |= self._answers(open_job, waiting, "work", open_job.common, own=True, meanwhile=meanwhile)
            meanwhile = nothing

    def _answers(
        self,
        open_job: OpenJob,
        shares: Sequence[int],
        method: str,
        *args: Any,
        own: bool = False,
        meanwhile: Callable[[], None] = nothing,
    ) -> dict[int, Any]:
        """Return the workers' answers by share, without those of lost workers."""
        calls = {
            share: (
                self.hosts[share],
                self._ask(share, method, *args, *([ShareJob.of(open_job.job, open_job.places[share])] if own else [])),
            )
            for share in shares
        }
        meanwhile()
        answers: dict[int, Any] = {}
        for share, (handle, call) in calls.items():
            try:
                answers[share] = self.pool.get(call)
            except WorkerLost as loss:
                self._handle_loss(handle, loss)
        return {share: answer for share, answer in answers.items() if share in self.hosts}

    def _ping_workers(self, open_job: OpenJob, loss: WorkerLost) -> None:
        """Ping the workers of a job and replace the lost ones.

        A failed sum names only the root of the tree, while any worker below it may be the one that was lost.
        """
        calls = [
            (handle, self.pool.call(handle, "ping")) for handle in {self.hosts[share] for share in open_job.places}
        ]
        open_job.losses[-1] += 1  # nobody may be: then something else went wrong, which may do so a few times
        self._check_losses(open_job, loss)
        for handle, call in calls:
            try:
                self.pool.get(call)
            except WorkerLost as found:
                self._handle_loss(handle, found)

    def _handle_loss(self, handle: WorkerHandle, loss: WorkerLost) -> None:
        """Replace a lost worker and forget the results of its shares, which will be repeated."""
        self.pool.replace(handle)
        for share in [share for share, host in self.hosts.items() if host is handle]:
            del self.hosts[share]
            if self.open_job is not None and self.open_job.open:
                self.open_job.reports.pop(share, None)
                self.open_job.kept.pop(share, None)
                self.open_job.losses[share] += 1
                self._check_losses(self.open_job, loss)

    def _check_losses(self, open_job: OpenJob, loss: WorkerLost) -> None:
        if max(open_job.losses.values()) > TRIES:
            raise UserError(
                f"round {open_job.job.round + 1} lost workers again and again, the last one to this: {loss}; "
                "a run that was recorded goes on with --resume"
            )

    # --- who holds what

    def _place_shares(self, shares: Iterable[int]) -> None:
        """Place these shares on workers, waiting for workers if necessary."""
        waited = False
        while missing := [share for share in shares if share not in self.hosts]:  # who fails may have had others
            taken = Counter(self.hosts.values())
            if not waited:
                self.pool.wait_for_others(taken, len(missing))
                waited = True
            self.pool.wait_for_any()
            with self.store.marker() as marker:
                calls = []
                for share in missing[:TRANSFERS_AT_ONCE]:
                    handle = self.hosts[share] = self.pool.least_loaded(taken)
                    taken[handle] += 1
                    calls.append((share, handle, self._send_share(share, marker)))
                for share, handle, call in calls:
                    try:
                        self.store.of_share[share] = self.pool.get(call)
                    except WorkerLost as loss:
                        self._handle_loss(handle, loss)

    def _send_share(self, share: int, marker: str) -> Any:
        """Send a share to its worker; return the reference to its answer."""
        if self.setup_message is None:
            local, store = self.local, self.store
            job = local.job
            own = {type(part) for part in (*job.chain, *job.model.training.modules())}
            setup_message = SetupMessage.of(local, store.directory if store.blank else None, store.on_disk, store.blank)
            self.setup_message = self.pool.remote.put(setup_message, sorted(own, key=str))
        held = ShareData.of(self.local.clients, self.members[share])
        mark = f"{self.name}-{uuid4().hex[:8]}"  # no other has ever written under this name
        return self._ask(share, "hold", self.setup_message, held, self.store.segments_of([share]), mark, marker)

    def _share_out(self, home: Ints, round: int) -> None:
        """Assign clients to the shares `home`; shares that change are sent again."""
        began = perf_counter()
        if len(self.home):
            for share in set(np.stack([self.home, home])[:, self.home != home].flatten().tolist()):
                self._ask(share, "drop")
                del self.hosts[share]
            self.store.share_out({share: set(self.home[who].tolist()) for share, who in group_by_share(home).items()})
        self.home, self.members, self.moved_in = home, group_by_share(home), round
        self._place_shares(self.members)
        self.move = perf_counter() - began

    def _measure(self, open_job: OpenJob) -> None:
        if open_job.job.kind == "train":
            for share, reports in open_job.reports.items():
                cost = self.cost[open_job.job.cohort.ids[open_job.places[share]]].sum()
                self.hosts[share].measured(float(cost), reports.seconds)

    def _balance(self, job: Job) -> None:
        """Move shares to idle workers, and rarely clients to faster ones."""
        taken = Counter(self.hosts.values())
        idle = sum(handle not in taken for handle in self.pool.connected)
        for share in [share for share, handle in self.hosts.items() if taken[handle] > 1][:idle]:
            if taken[self.hosts[share]] > 1:
                taken[self.hosts[share]] -= 1
                self._ask(share, "drop")
                del self.hosts[share]
        self._place_shares(self.members)
        handles = [self.hosts[share] for share in self.members]
        if (
            job.round - self.moved_in < ROUNDS_BETWEEN_MOVES
            or len(set(handles)) < len(handles)
            or not all(h.cost for h in handles)
        ):
            return
        speed = np.array([handle.cost / handle.seconds for handle in handles])
        home = rebalance(self.home, self.cost, speed)
        setup = self.local.setup
        part = len(job.cohort) / setup.population  # of the clients, in a round
        now, then = part * seconds(self.home, self.cost, speed), part * seconds(home, self.cost, speed)
        if worth_moving(now, then, setup.rounds - job.round, self.move):
            many = int((home != self.home).sum())
            log.info("%d clients move: a round's training should take %.2g s instead of %.2g s", many, then, now)
            self._share_out(home, job.round)

    def _release(self) -> None:
        """Drop everything that workers hold for this run."""
        for share in self.hosts:
            self._ask(share, "drop")
        self.hosts.clear()
        self.open_job = self.setup_message = None

    def _ask(self, share: int, method: str, *args: Any) -> Any:
        """Call a method of a share's worker; return the reference to its answer."""
        return self.pool.call(self.hosts[share], method, f"{self.name}/{share}", *args)


def children(at: int, count: int) -> list[int]:
    """Return the children of node `at` in a binomial tree over `count` nodes with root 0."""
    steps = (1 << k for k in range(count.bit_length()))
    return [at + step for step in steps if at % (2 * step) == 0 and at + step < count]


def group_by_share(share: Ints) -> dict[int, Ints]:
    """Return for each share the positions at which the array holds it."""
    order = np.argsort(share, kind="stable")
    found, begins = np.unique(share[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, begins[1:]), strict=True))


@dataclass(frozen=True, eq=False)
class RemoteReplies:
    """Replies that stay with the workers until they are read."""

    cluster: Cluster
    open_job: OpenJob
    came: np.ndarray | None = None  # places in the job's cohort that replied; None = all of them

    def each(self, key: str) -> Tensor:
        whole: Tensor | None = None
        for places, values in self.parts(key):
            if whole is None:
                whole = values.new_empty((len(self.open_job.job.cohort), *values.shape[1:]))
            whole[places] = values
        assert whole is not None
        return whole

    def sum(self, key: str, weights: Tensor) -> Tensor:
        if all(key in reports.small for reports in self._told):
            return Stacked({key: self.each(key)}, Work()).sum(key, weights)
        return tensor(self.cluster.weighted_sum(self.open_job, key, array(weights)), self._device)

    def parts(self, key: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield positions among the replies and their values, one share after another."""
        for share, values in self.cluster.uploads_by_share(self.open_job, key):
            yield to_device(self.open_job.places[share], self._device), tensor(values, self._device)

    def of_those_at(self, places: np.ndarray) -> RemoteReplies:
        """Return the replies of a job that was for the clients at `places` of a larger cohort."""
        return replace(self, came=places if self.came is None else places[self.came])

    @property
    def work(self) -> Work:
        return sum((reports.work for reports in self._told), Work())

    @property
    def bytes_up(self) -> int:
        return sum(reports.bytes_up for reports in self._told)

    @property
    def _told(self) -> list[ShareReport]:
        return [self.open_job.reports[share] for share in self.open_job.places]

    @property
    def _device(self) -> torch.device:
        return self.open_job.job.model.device
