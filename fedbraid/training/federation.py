"""A federation round by round, wherever its clients are."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbraid.config.schema import Config
from fedbraid.core import sampling
from fedbraid.core.chain import Chain
from fedbraid.core.client_step import FOR_THE_LOG, Work
from fedbraid.core.code import own_code
from fedbraid.core.memo import Memo
from fedbraid.core.model import Model
from fedbraid.core.optimizer import Optimizer
from fedbraid.core.round import Job, Server, one_round, refuse_no_mean
from fedbraid.core.sampling import Drawn
from fedbraid.core.strand import Cohort, Setup
from fedbraid.core.tree import nbytes
from fedbraid.engines.base import Engine
from fedbraid.engines.cpu import one_thread
from fedbraid.engines.replies import Answers
from fedbraid.engines.transfer import HostCopy, RoundClock, to_device
from fedbraid.privacy import budget as privacy
from fedbraid.storage.client_store import ClientStore
from fedbraid.training.cohorts import draw_cohort
from fedbraid.training.evaluation import validation
from fedbraid.training.model_inputs import Inputs
from fedbraid.training.watches import TrainedRound, Watch, of_trained

log = logging.getLogger("fedbraid")

Line = Callable[[], dict[str, Any]]
"""What a round's line of the log says. Reading it waits for a GPU, which may be a round behind."""
Training = Generator[Job, Answers, Line]
"""A round without its evaluation: yields jobs for clients, receives their replies."""

MOST_LISTED = 1000
"""Clients of a round that its line of the log lists."""


@dataclass(frozen=True, eq=False)
class Step:
    """State of a round: at a job for its clients, or (None) at its end, with a line for the log."""

    training: Training
    job: Job | None
    line: Line

    def next(self, replies: Answers) -> Step:
        return _step(self.training, lambda: self.training.send(replies))


def first_step(training: Training) -> Step:
    return _step(training, lambda: next(training))


def _step(training: Training, go: Callable[[], Job]) -> Step:
    try:
        return Step(training, go(), dict)
    except StopIteration as done:
        return Step(training, None, done.value)


@dataclass(eq=False)
class Federation(ABC):
    """A federation between two rounds; `advance` runs the next one, `launch` does not wait for its end on a GPU."""

    config: Config
    chain: Chain
    model: Model
    optimizer: Optimizer
    setup: Setup
    engine: Engine
    store: ClientStore
    server: Server
    watches: tuple[Watch, ...] = field(default=(), kw_only=True)  # analyses that put numbers into the log
    finite: bool = field(default=True, kw_only=True)  # whether the model was finite after the round that was read last
    read_at: float = field(default=0.0, kw_only=True)  # when that was
    own_code: dict[str, str] = field(init=False)  # digests of code of one's own, as it was loaded
    _cohort: Memo[Cohort] = field(default_factory=Memo, init=False, repr=False)

    def __post_init__(self) -> None:
        self.own_code = own_code(
            self.chain, self.model.training
        )  # now: their files may be edited while the run goes on

    # --- what depends on where the data are

    @property
    @abstractmethod
    def sizes(self) -> np.ndarray:
        """[population] training samples of every client."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A few letters that change with the data, its partition or the initial model."""

    @property
    @abstractmethod
    def label_table(self) -> list[list[int]] | None:
        """Training samples, `[clients][classes]`; None where there are no classes, or where nobody knows."""

    @property
    @abstractmethod
    def inputs(self) -> Inputs:
        """The inputs that the trained model takes."""

    @abstractmethod
    def scored(self) -> Line:
        """Evaluate the deployed model: accuracy, loss and per-class accuracy at least."""

    # --- privacy

    def secret(self) -> int:
        """Mixed into noise that hides clients' data. A simulation hides nothing from who knows its seed."""
        return 0

    def release(self) -> int:
        """A model is about to be handed out, whatever becomes of this process: `released`, with this one."""
        return self.released

    @property
    def released(self) -> int:
        """The number of models handed out after training, each a release of clients' data."""
        return self.server.round

    @property
    def drawn(self) -> Drawn | None:
        """The sampling of cohorts, where those who see the models do not know who was in them."""
        return privacy.drawn(self.config.sampling, self.setup.population, self.chain)

    # --- rounds

    @property
    def finished(self) -> bool:
        return self.server.round >= self.config.rounds

    @property
    def lr(self) -> float:
        """The learning rate of the next round."""
        return learning_rate(self.config, self.optimizer, self.server.round)

    @property
    def watched(self) -> bool:
        """Return whether analyses look at the round that ended last."""
        return bool(self.watches) and (self.finished or self.server.round % self.config.analysis.every == 0)

    def advance(self) -> dict[str, Any]:
        """One round; returns its line of the log."""
        return self.launch()()

    def launch(self) -> Line:
        """One round, or at least its start: a GPU may still be busy with it. Lines are to be read in their order."""
        clock = RoundClock(self.server.w.device)
        with self.threads():
            step = first_step(self.training())
            while step.job is not None:
                step = step.next(self.engine.run(step.job, self.plan_ahead))
        scores = self.evaluated()
        clock.stop()

        def line() -> dict[str, Any]:
            record = step.line() | scores()
            seconds, self.read_at = clock.seconds(self.read_at)
            return record | {"seconds": seconds}

        return line

    def threads(self) -> AbstractContextManager[None]:
        """Set the number of threads while clients train."""
        return one_thread() if self.server.w.device.type == "cpu" else nullcontext()

    def training(self) -> Training:
        """The next round. Clients are lost while they train, after any probe: who does not come back is not asked."""
        cohort, before = self.cohort(), self.server
        lr = self.lr
        flow = one_round(self.chain, lr, self.setup, before, cohort, self.config.seed, self.secret())
        arriving = self._arriving(self.server.round, len(cohort)) if self.config.sampling.dropout else None
        down = up = 0
        work = Work()
        job = next(flow)
        while True:
            replies = yield from _arrived(job, arriving)
            down += job.bytes_down - (0 if "model" in job.already else self._unsent * len(job.cohort))
            came, following = job.cohort.ids[:0], None
            try:
                following = flow.send(replies)
            except StopIteration as done:
                self.server = done.value
            if replies is not None:  # which may have taken more on the way
                up, work = up + replies.bytes_up, work + replies.work
                came = job.cohort.ids if replies.came is None else job.cohort.ids[replies.came]
                up -= self._unsent * len(came) if job.kind == "train" else 0
            if following is None:
                break
            job = following
        privacy_numbers = privacy.report(self.chain, self.release(), self.drawn)
        w, place, shared = self.server.w, self.server.round, self.server.shared
        sums = [replies.each(key).sum() for key in FOR_THE_LOG] if replies is not None else [w.new_zeros(())] * 2
        losses_of = replies.each(FOR_THE_LOG[0]) if replies is not None else w.new_zeros(0)
        totals = HostCopy(torch.stack([*w.aminmax(), *sums, *shared.values()]))
        analysed: dict[str, Any] = {}
        if replies is not None and self.watched:
            analysed = of_trained(self.watches, TrainedRound(before, self.server, job, replies))

        def line() -> dict[str, Any]:
            least, most, losses, samples, *of_shares = totals.numpy().tolist()
            refuse_no_mean(dict(zip(shared, of_shares, strict=True)))
            finite = all(map(math.isfinite, (least, most, losses)))  # all are, where the extremes are
            if self.finite and not finite:
                who = f"{self.config.called} seed {self.config.seed}"
                log.warning("%s, round %d: %s", who, place, _why_not_finite(came, losses_of))
            self.finite = finite
            return {
                "round": place,
                "clients": len(cohort),
                "lost": len(cohort) - len(came),
                "client_ids": _listed(cohort.ids, cohort),
                "lost_ids": _listed(np.setdiff1d(cohort.ids, came), cohort),
                "lr": lr,
                "finite": finite,
                "train_loss": losses / samples if samples else None,
                "bytes_down": down,
                "bytes_up": up,
                "forward_samples": work.forward,
                "backward_samples": work.backward,
                **privacy_numbers,
                **analysed,
            }

        return line

    @property
    def _unsent(self) -> int:
        """Bytes of a client's buffers where these stay with it: jobs and replies hold them for evaluation alone."""
        return nbytes({"buffers": self.setup.buffers}) if self.config.buffers == "local" else 0

    def deployed(self) -> tuple[Tensor, Tensor]:
        """The model that is evaluated: its parameters and buffers."""
        if self.config.evaluate.model == "cohort" and (mean := self.server.cohort_mean):
            return mean
        return self.server.deployed(self.chain, self.setup), self.server.buffers

    def module(self) -> nn.Module:
        """The network with the trained model in it."""
        w, buffers = self.deployed()
        module = self.model.to(w.dtype, w.device).evaluating
        module.load_state_dict(self.model.layout.views(w) | self.model.buffers.views(buffers), strict=False)
        return module

    def plan_ahead(self) -> None:
        """Prepare the next round while this one is under way."""
        if coming := self.coming():
            self.engine.prepare(*coming)

    def coming(self) -> tuple[int, int, list[int]] | None:
        """The round after the one that is under way: its seed, its number and who trains in it; None if it is last."""
        place = self.server.round + 1
        return self.trainees(place) if place < self.config.rounds else None

    def trainees(self, place: int) -> tuple[int, int, list[int]]:
        """Return a round as engines take it: its seed, its number and the clients that train in it."""
        cohort = self.cohort(place)
        return self.config.seed, place, cohort.ids[self._arriving(place, len(cohort))].tolist()

    def _arriving(self, place: int, clients: int) -> np.ndarray:
        """The places in the cohort of a round whose updates arrive."""
        return sampling.arriving(clients, self.config.sampling.dropout, seed=self.config.seed, round=place)

    def cohort(self, place: int | None = None) -> Cohort:
        """Return the cohort of the round of this number, or of the next one."""
        place = self.server.round if place is None else place
        return self._cohort.of(place, lambda: self._made_cohort(place))

    def _made_cohort(self, place: int) -> Cohort:
        return made_cohort(self.config, self.setup, self.sizes, place)

    def evaluated(self) -> Line:
        """The round's evaluation, or None for each of its parts where it is not due."""
        if self.server.round % self.config.evaluate.every and not self.finished:
            unknown = dict.fromkeys(("accuracy", "loss", "per_class", *self.config.evaluate.metrics))
            return lambda: unknown | (validation(None, None) if self.config.evaluate.validation else {})
        return self.scored()


def _why_not_finite(ids: np.ndarray, losses: Tensor) -> str:
    """Say why a model is not finite any more: by some clients, whose losses [C] are not finite, or by its training."""
    broken = ids[~torch.isfinite(losses).cpu().numpy()]
    if 0 < len(broken) < len(ids):
        clients = f"client{'s' if len(broken) > 1 else ''} {', '.join(map(str, broken[:10]))}"
        return (
            f"the training loss of {clients} is not finite, and the model is no longer finite; look at the data of "
            f"{'these clients' if len(broken) > 1 else 'this client'}, or try a smaller optimizer.lr"
        )
    return "the model is no longer finite; try a smaller optimizer.lr"


def _listed(ids: np.ndarray, cohort: Cohort) -> list[int] | None:
    """Clients as a line of the log has them; None where there are so many that it would hold little else."""
    return ids.tolist() if len(cohort) <= MOST_LISTED else None


def _arrived(job: Job, arriving: np.ndarray | None) -> Generator[Job, Answers, Answers | None]:
    """The replies of those who come back (None = who can), or None if nobody does."""
    if job.kind == "probe" or arriving is None:
        return (yield job)
    if not len(arriving):
        return None
    return (yield job.only(arriving)).of_those_at(arriving)


def arrivals(config: Config, population: int) -> np.ndarray:
    """[population] the round, counted from 0, from which each client is there."""
    s = config.sampling
    return sampling.arrivals(population, s.late, s.late_from - 1, s.late_by - 1, seed=config.seed)


def learning_rate(config: Config, optimizer: Optimizer, round: int) -> float:
    """Return the local learning rate of a round, counted from 0."""
    return optimizer.lr * optimizer.decay**round * config.schedule.share(round, config.rounds)


def made_cohort(config: Config, setup: Setup, sizes: np.ndarray, round: int) -> Cohort:
    """Draw who takes part in a round, counted from 0, of clients with these numbers of samples [population]."""
    present = np.flatnonzero(arrivals(config, setup.population) <= round)
    ids = present[draw_cohort(config.sampling, sizes[present], seed=config.seed, round=round, rounds=config.rounds)]
    return Cohort(ids, to_device(sizes[ids].astype(np.float64), setup.w.device, setup.w.dtype))
