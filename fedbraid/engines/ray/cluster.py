"""Clients that are spread over the workers of a cluster: each holds a share of them and trains those that are asked.

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
from fedbraid.engines.ray.placement import Ints, costs, dealt, evened, seconds, worth_moving
from fedbraid.engines.ray.remote_states import Scattered
from fedbraid.engines.ray.serialization import Common, Held, Kit, Own, Told, array, tensor
from fedbraid.engines.ray.worker_pool import Crew, Hand, Lost
from fedbraid.engines.replies import Stacked
from fedbraid.engines.transfer import to_device
from fedbraid.errors import UserError
from fedbraid.storage.client_store import ClientStore

log = logging.getLogger("fedbraid")

AT_ONCE = 8
"""Shares whose samples are on their way to workers at a time."""
TRIES = 10
"""Times that a share may be lost in one job."""
SETTLED = 10
"""Rounds after which clients may move to other workers (again)."""


def spread(
    local: Local, states: ClientStore, config: EngineConfig, beside: Engine | None = None
) -> tuple[Cluster, Scattered]:
    """The engine that has workers of a cluster train what `local` would, and where clients' states then are.

    Workers are taken over from an engine `beside` it that is set alike.
    """
    store = Scattered(states.blank, states.directory, on_disk=states.on_disk)
    if isinstance(beside, Cluster) and beside.config == config:
        return Cluster(local, store, beside.crew, config), store
    may_use_gpus = config.device != "cpu"
    remote = RayRemote(config.address, config.gpus_per_worker, may_use_gpus, least=config.workers)
    return Cluster(local, store, Crew(remote, config.workers, config.patience), config), store


@dataclass(eq=False)
class Asked:
    """A job, and how far the shares are with it."""

    job: Job
    common: Any  # a reference
    places: dict[int, np.ndarray]  # by share, those of its clients in the cohort
    told: dict[int, Told] = field(default_factory=dict)  # by those that are done with it
    kept: dict[int, list[str]] = field(default_factory=dict)  # segments with the states after it
    losses: Counter[int] = field(default_factory=Counter)
    open: bool = True


@dataclass(eq=False)
class Cluster:
    """An engine: `run(job) -> replies`."""

    local: Local  # has all clients and trains none of them; workers' engines are made like it
    store: Scattered
    crew: Crew
    config: EngineConfig
    kind: Literal["ray"] = "ray"

    def __post_init__(self) -> None:
        self.name = uuid4().hex[:8]
        self.cost = costs(self.local.clients.sizes, self.local.work)
        self.home: Ints = np.zeros(0, dtype=np.int64)  # [clients] the share of each, once it is known …
        self.members: dict[int, Ints] = {}  # … and the other way round
        self.hosts: dict[int, Hand] = {}  # who holds a share
        self.asked: Asked | None = None
        self.kit: Any = None  # a reference
        self.moved_in = 0  # the round since which clients are where they are …
        self.move = 0.0  # … and the seconds that it took to bring them there
        self.store.settle, self.store.forsake = self.settle, self._forsake
        self.closed = False
        self.crew.users += 1

    # --- the engine

    @torch.no_grad()
    def run(self, job: Job, meanwhile: Callable[[], None] = nothing) -> Gathered:
        self.settle()
        self.crew.gather(len(self.cost))
        if not len(self.home):
            self._share_out(dealt(self.cost, np.ones(self.crew.wanted)), job.round)
        self._balance(job)
        self.asked = Asked(job, self.crew.remote.put(Common.of(job)), sorted_out(self.home[job.cohort.ids]))
        self._everybody_is_done(self.asked, meanwhile)
        self._measure(self.asked)
        return Gathered(self, self.asked)

    def prepare(self, seed: int, round: int, ids: Sequence[int]) -> None:
        """Let workers plan a round that comes next, as soon as they are done with the present one."""
        numbers = np.array(ids, dtype=np.int64)
        for share, places in sorted_out(self.home[numbers]).items():
            if share in self.hosts:
                self._ask(share, "prepare", seed, round, numbers[places].tolist())

    def settle(self) -> None:
        """The latest job is over once the states after it are in files."""
        asked = self.asked
        if asked is None or not asked.open:
            return
        if self._writes(asked):
            while missing := [share for share in asked.places if share not in asked.kept]:
                self._everybody_is_done(asked)
                asked.kept |= self._answers(asked, missing, "kept")
            self.store.advance(asked.kept, len(self.members))
        asked.open, asked.common = False, None

    def close(self) -> None:
        """Workers forget this run, and go unless another one has them too."""
        if not self.closed:
            self.closed = True
            self._let_finish()
            self._forsake()
            self.store.close()
            self.crew.leave()

    def _let_finish(self) -> None:
        """Wait for states that are on their way to files, unless the job is not even done."""
        asked = self.asked
        if asked is None or not asked.open or not self._writes(asked) or len(asked.told) < len(asked.places):
            return
        for call in [self._ask(share, "kept") for share in asked.places]:
            with suppress(Lost):
                self.crew.get(call)

    def _writes(self, asked: Asked) -> bool:
        return asked.job.kind == "train" and bool(self.store.blank)

    # --- what replies ask for

    def gathered(self, asked: Asked, key: str) -> Iterator[tuple[int, np.ndarray]]:
        """Every share's part of an upload, one after the other; the others wait with their workers."""
        left = list(asked.places)
        while left:
            self._everybody_is_done(asked)
            small = {share: told.small[key] for share, told in asked.told.items() if key in told.small}
            calls = {s: (self.hosts[s], self._ask(s, "each", key)) for s in left if s not in small}
            for share in list(left):
                try:
                    yield share, small[share] if share in small else self.crew.get(calls[share][1])
                    left.remove(share)
                except Lost as loss:
                    self._lose(calls[share][0], loss)

    def added(self, asked: Asked, key: str, weights: np.ndarray) -> np.ndarray:
        """The weighted sum of an upload over everybody: partial sums go from worker to worker, the last one comes."""
        shares = list(asked.places)
        while True:
            self._everybody_is_done(asked)
            made: dict[int, Any] = {}
            for at in reversed(range(len(shares))):  # a worker that has several does first what others wait for
                share, others = shares[at], [made[child] for child in children(at, len(shares))]
                made[at] = self._ask(share, "sum", key, weights[asked.places[share]], others)
            try:
                total: np.ndarray = self.crew.get(made[0])
                return total
            except Lost as loss:
                self._roll_call(asked, loss)

    # --- faults

    def _everybody_is_done(self, asked: Asked, meanwhile: Callable[[], None] = nothing) -> None:
        """Every share has done the job; what is lost is done again."""
        if not asked.open:
            raise RuntimeError("replies are gone once the next job is under way or the state is saved")
        while waiting := [share for share in asked.places if share not in asked.told]:
            self._host(waiting)
            asked.told |= self._answers(asked, waiting, "work", asked.common, own=True, meanwhile=meanwhile)
            meanwhile = nothing

    def _answers(
        self,
        asked: Asked,
        shares: Sequence[int],
        method: str,
        *args: Any,
        own: bool = False,
        meanwhile: Callable[[], None] = nothing,
    ) -> dict[int, Any]:
        """What workers say of these shares; of those that are lost, nothing."""
        calls = {
            share: (
                self.hosts[share],
                self._ask(share, method, *args, *([Own.of(asked.job, asked.places[share])] if own else [])),
            )
            for share in shares
        }
        meanwhile()
        answers: dict[int, Any] = {}
        for share, (hand, call) in calls.items():
            try:
                answers[share] = self.crew.get(call)
            except Lost as loss:
                self._lose(hand, loss)
        return {share: answer for share, answer in answers.items() if share in self.hosts}

    def _roll_call(self, asked: Asked, loss: Lost) -> None:
        """Find out who is lost."""
        calls = [(hand, self.crew.call(hand, "hello")) for hand in {self.hosts[share] for share in asked.places}]
        asked.losses[-1] += 1  # nobody may be: then something else went wrong, which may do so a few times
        self._check_losses(asked, loss)
        for hand, call in calls:
            try:
                self.crew.get(call)
            except Lost as found:
                self._lose(hand, found)

    def _lose(self, hand: Hand, loss: Lost) -> None:
        """A worker is lost, and with it what it held."""
        self.crew.replace(hand)
        for share in [share for share, host in self.hosts.items() if host is hand]:
            del self.hosts[share]
            if self.asked is not None and self.asked.open:
                self.asked.told.pop(share, None)
                self.asked.kept.pop(share, None)
                self.asked.losses[share] += 1
                self._check_losses(self.asked, loss)

    def _check_losses(self, asked: Asked, loss: Lost) -> None:
        if max(asked.losses.values()) > TRIES:
            raise UserError(
                f"round {asked.job.round + 1} lost workers again and again, the last one to this: {loss}; a run that "
                "was recorded goes on with --resume"
            )

    # --- who holds what

    def _host(self, shares: Iterable[int]) -> None:
        """Everyone of these shares has a worker that holds it."""
        waited = False
        while missing := [share for share in shares if share not in self.hosts]:  # who fails may have had others
            taken = Counter(self.hosts.values())
            if not waited:
                self.crew.wait_for_others(taken, len(missing))
                waited = True
            self.crew.wait_for_any()
            with self.store.sign() as sign:
                calls = []
                for share in missing[:AT_ONCE]:
                    hand = self.hosts[share] = self.crew.able(taken)
                    taken[hand] += 1
                    calls.append((share, hand, self._hold(share, sign)))
                for share, hand, call in calls:
                    try:
                        self.store.of_share[share] = self.crew.get(call)
                    except Lost as loss:
                        self._lose(hand, loss)

    def _hold(self, share: int, sign: str) -> Any:
        """Tell a share's worker to hold it from now on."""
        if self.kit is None:
            local, store = self.local, self.store
            job = local.job
            own = {type(part) for part in (*job.chain, *job.model.training.modules())}
            kit = Kit.of(local, store.directory if store.blank else None, store.on_disk, store.blank)
            self.kit = self.crew.remote.put(kit, sorted(own, key=str))
        held = Held.of(self.local.clients, self.members[share])
        mark = f"{self.name}-{uuid4().hex[:8]}"  # no other has ever written under this name
        return self._ask(share, "hold", self.kit, held, self.store.having([share]), mark, sign)

    def _share_out(self, home: Ints, round: int) -> None:
        """From now on clients belong to these shares; a share that changes is held anew."""
        began = perf_counter()
        if len(self.home):
            for share in set(np.stack([self.home, home])[:, self.home != home].flatten().tolist()):
                self._ask(share, "drop")
                del self.hosts[share]
            self.store.share_out({share: set(self.home[who].tolist()) for share, who in sorted_out(home).items()})
        self.home, self.members, self.moved_in = home, sorted_out(home), round
        self._host(self.members)
        self.move = perf_counter() - began

    def _measure(self, asked: Asked) -> None:
        if asked.job.kind == "train":
            for share, told in asked.told.items():
                cost = self.cost[asked.job.cohort.ids[asked.places[share]]].sum()
                self.hosts[share].measured(float(cost), told.seconds)

    def _balance(self, job: Job) -> None:
        """Shares go to workers that have none; clients move to faster workers, rarely."""
        taken = Counter(self.hosts.values())
        idle = sum(hand not in taken for hand in self.crew.here)
        for share in [share for share, hand in self.hosts.items() if taken[hand] > 1][:idle]:
            if taken[self.hosts[share]] > 1:
                taken[self.hosts[share]] -= 1
                self._ask(share, "drop")
                del self.hosts[share]
        self._host(self.members)
        hands = [self.hosts[share] for share in self.members]
        if job.round - self.moved_in < SETTLED or len(set(hands)) < len(hands) or not all(h.cost for h in hands):
            return
        speed = np.array([hand.cost / hand.seconds for hand in hands])
        home = evened(self.home, self.cost, speed)
        setup = self.local.setup
        part = len(job.cohort) / setup.population  # of the clients, in a round
        now, then = part * seconds(self.home, self.cost, speed), part * seconds(home, self.cost, speed)
        if worth_moving(now, then, setup.rounds - job.round, self.move):
            many = int((home != self.home).sum())
            log.info("%d clients move: a round's training should take %.2g s instead of %.2g s", many, then, now)
            self._share_out(home, job.round)

    def _forsake(self) -> None:
        """What workers hold is no longer wanted."""
        for share in self.hosts:
            self._ask(share, "drop")
        self.hosts.clear()
        self.asked = self.kit = None

    def _ask(self, share: int, method: str, *args: Any) -> Any:
        """A reference to what a share's worker will say."""
        return self.crew.call(self.hosts[share], method, f"{self.name}/{share}", *args)


def children(at: int, count: int) -> list[int]:
    """Those whose sums go straight to the one at this place of a tree over `count`, in which 0 is the root."""
    steps = (1 << k for k in range(count.bit_length()))
    return [at + step for step in steps if at % (2 * step) == 0 and at + step < count]


def sorted_out(share: Ints) -> dict[int, Ints]:
    """Where each share is found in an array of them."""
    order = np.argsort(share, kind="stable")
    found, begins = np.unique(share[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, begins[1:]), strict=True))


@dataclass(frozen=True, eq=False)
class Gathered:
    """Replies that stay with the workers until they are asked for."""

    cluster: Cluster
    asked: Asked
    came: np.ndarray | None = None  # places in the job's cohort that replied; None = all of them

    def each(self, key: str) -> Tensor:
        whole: Tensor | None = None
        for places, values in self.parts(key):
            if whole is None:
                whole = values.new_empty((len(self.asked.job.cohort), *values.shape[1:]))
            whole[places] = values
        assert whole is not None
        return whole

    def sum(self, key: str, weights: Tensor) -> Tensor:
        if all(key in told.small for told in self._told):
            return Stacked({key: self.each(key)}, Work()).sum(key, weights)
        return tensor(self.cluster.added(self.asked, key, array(weights)), self._device)

    def parts(self, key: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Places among the replies and the values of those who stand there, one share after the other."""
        for share, values in self.cluster.gathered(self.asked, key):
            yield to_device(self.asked.places[share], self._device), tensor(values, self._device)

    def of_those_at(self, places: np.ndarray) -> Gathered:
        """The same, where the job was one for those at `places` of a larger cohort."""
        return replace(self, came=places if self.came is None else places[self.came])

    @property
    def work(self) -> Work:
        return sum((told.work for told in self._told), Work())

    @property
    def bytes_up(self) -> int:
        return sum(told.bytes_up for told in self._told)

    @property
    def _told(self) -> list[Told]:
        return [self.asked.told[share] for share in self.asked.places]

    @property
    def _device(self) -> torch.device:
        return self.asked.job.model.device
