"""Analyses inside a run: cheap quantities for the log, computed from tensors that the round has anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.round import Job, Server
from fedbraid.core.strand import Cohort
from fedbraid.data.dataset import Partition
from fedbraid.data.groups import class_groups
from fedbraid.engines.replies import Answers
from fedbraid.errors import unknown
from fedbraid.training.evaluation import by_group, per_client

NUMBERS = 2**20
"""Parameters, over all clients, that are looked at together: a few megabytes stay in a processor's cache."""

Numbers = dict[str, float | None]
"""Quantities by name; None where there is nothing to measure."""


@dataclass(frozen=True, eq=False)
class TrainedRound:
    """A round whose clients have come back, as the server sees it."""

    before: Server
    after: Server
    asked: Job  # as it was sent to the whole cohort
    replies: Answers

    @cached_property
    def job(self) -> Job:
        """The job of the clients that came back."""
        return self.asked if self.replies.came is None else self.asked.only(self.replies.came)

    @property
    def cohort(self) -> Cohort:
        return self.job.cohort

    @property
    def models(self) -> Tensor:
        """[C, D] every client's model after local training."""
        return self.replies.each("model")

    @property
    def buffers(self) -> Tensor:
        """[C, Db]"""
        return self.replies.each("buffers")

    @property
    def received(self) -> Tensor:
        """[C, D] the model that each client began from."""
        return self.job.model.expand(len(self.cohort), -1)

    @property
    def received_buffers(self) -> Tensor:
        """[C, Db]"""
        return self.job.buffers.expand(len(self.cohort), -1)

    def some_models(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The clients' models and what they began from, some clients at a time: what is made of them stays small."""
        start = self.job.model
        for places, models in self.replies.parts("model"):
            size = max(1, NUMBERS // models.shape[1])
            for k in range(0, len(models), size):
                part = slice(k, k + size)
                yield models[part], start[places[part]] if start.dim() == 2 else start


@dataclass(frozen=True, eq=False)
class Scored:
    """A round that was evaluated."""

    per_class: list[float | None]
    correct: np.ndarray  # which test samples were right
    partition: Partition
    label_counts: np.ndarray  # [clients, classes]


@dataclass(frozen=True)
class Watch:
    """An analysis that runs inside a run; either part may be left out."""

    name: str
    summary: str
    trained: Callable[[TrainedRound], Numbers] | None = None
    scored: Callable[[Scored], Numbers] | None = None


def measure_drift(round: TrainedRound) -> Numbers:
    """Measure client drift in a round: clients go from x_k to w_k, the server from w to w⁺.

    variance  mean of ‖w_k − w⁺‖² (FedSkip figure 1)
    step      ‖w⁺ − w‖ (ASD figure 12)
    length    mean of ‖w_k − x_k‖, the updates
    cosine    mean over pairs of clients of the cosine between their updates; None for a client alone
    """
    clients, w = len(round.cohort), round.after.w
    squares = lengths = moved = w.new_zeros(())
    directions = torch.zeros_like(w)  # Σ u_k / ‖u_k‖: its square is the sum of all cosines, a pair's and one's own
    for models, start in round.some_models():
        squares = squares + (models - w).square_().sum()
        updates = models - start
        norms = updates.square().sum(1).sqrt()
        lengths, moved = lengths + norms.sum(), moved + (norms > 0).sum()
        directions.addmv_(updates.T, torch.where(norms > 0, 1 / norms, 0.0))
    step = (w - round.before.w).norm()
    sums = torch.stack([squares / clients, step, lengths / clients, directions.square().sum(), moved]).tolist()
    variance, step_length, length, total, n = sums
    cosine = (total - n) / (n * (n - 1)) if n > 1 else None
    return {"variance": variance, "step": step_length, "length": length, "cosine": cosine}


def measure_fairness(round: Scored) -> Numbers:
    """Measure how evenly accuracy is spread over clients and classes, as shares of 1.

    variance, worst     over clients; the mean of the worst tenth
    class_std           over classes
    head, middle, tail  means over classes with many, middling and few training samples
    """
    clients = per_client(round.per_class, round.correct, round.partition, round.label_counts)
    known = [a for a in round.per_class if a is not None]
    groups = by_group(round.per_class, class_groups(round.label_counts.sum(0)))
    spread = None if clients["std"] is None else clients["std"] ** 2
    return {
        "variance": spread,
        "worst": clients["worst10"],
        "class_std": float(np.std(known)) if known else None,
        **groups,
    }


WATCHES: tuple[Watch, ...] = (
    Watch("drift", "how far clients' models lie from the server's and from each other", trained=measure_drift),
    Watch("fairness", "how evenly the model serves clients and classes", scored=measure_fairness),
)
"""The analyses that `analyses = ["drift"]` may name in a run's configuration."""


def find_watches(names: Sequence[str]) -> tuple[Watch, ...]:
    """Return the in-run analyses of these names, each once; an unknown name raises `UserError`."""
    known = {watch.name: watch for watch in WATCHES}
    for name in names:
        if name not in known:
            raise unknown("analysis that runs inside a run", name, known)
    return tuple(known[name] for name in dict.fromkeys(names))


def of_trained(watches: Sequence[Watch], round: TrainedRound) -> dict[str, Any]:
    """Return the analyses' numbers of a round's training, as `name.quantity`."""
    return {
        f"{watch.name}.{key}": value
        for watch in watches
        if watch.trained
        for key, value in watch.trained(round).items()
    }


def of_scored(watches: Sequence[Watch], round: Scored) -> dict[str, Any]:
    """Return the analyses' numbers of a round's evaluation, as `name.quantity`."""
    return {
        f"{watch.name}.{key}": value for watch in watches if watch.scored for key, value in watch.scored(round).items()
    }
