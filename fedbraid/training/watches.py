"""Analyses that run inside a run: cheap numbers for the log, from what the round has anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from fedbraid.core.round import Job, Server
from fedbraid.core.strand import Cohort
from fedbraid.data.dataset import Partition
from fedbraid.engines.replies import Answers

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
        """What those who came back were asked to do."""
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


def of_trained(watches: Sequence[Watch], round: TrainedRound) -> dict[str, Any]:
    """What the log says of a round's training, as `name.quantity`."""
    return {
        f"{watch.name}.{key}": value
        for watch in watches
        if watch.trained
        for key, value in watch.trained(round).items()
    }


def of_scored(watches: Sequence[Watch], round: Scored) -> dict[str, Any]:
    """What the log says of a round's evaluation, as `name.quantity`."""
    return {
        f"{watch.name}.{key}": value for watch in watches if watch.scored for key, value in watch.scored(round).items()
    }
