"""A run on its way, and what is written of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from torch import Tensor

from fedbraid.config.schema import Config
from fedbraid.core.outputs import answering_logits
from fedbraid.errors import UserError
from fedbraid.privacy import budget as privacy
from fedbraid.report.summaries import summarise
from fedbraid.training.federation import Federation
from fedbraid.training.results import Run
from fedbraid.training.run_directory import RunDirectory

log = logging.getLogger("fedbraid")

Some = TypeVar("Some", bound=Federation)


class Stop(Enum):
    """What `on_round` may answer."""

    STOP = "stop"


STOP = Stop.STOP
"""The answer of `on_round` that ends a run before its last round."""
OnRound = Callable[[dict[str, Any], Config], object]
"""Told of each round, by its line of the log and the run's configuration. Its answers are ignored, but for `STOP`."""


@dataclass(eq=False)
class RunWriter(Generic[Some]):
    """A run on its way, and what is written of it."""

    simulation: Some
    config: Config  # resolved
    directory: RunDirectory | None
    weights: Mapping[str, Tensor] | None = None  # to begin with, where no seed makes them again
    rounds: list[dict[str, Any]] = field(default_factory=list)
    saved: int = 0  # the round of the last checkpoint
    opened: bool = False  # so that what goes wrong now is no mistake in what was asked for
    stopped: bool = False  # by who is told of its rounds

    def locked(self) -> AbstractContextManager[None]:
        return self.directory.locked() if self.directory else nullcontext()

    def check(self, resume: bool) -> None:
        """A directory that holds a run is written to only to continue that run."""
        if not self.directory:
            return
        if not self.directory.started:
            self.directory.check_vacant()
            return
        if not resume:
            raise holds_a_run(self.directory)
        self.directory.check_same(self.config)
        self.directory.check_length(self.config.rounds, self.simulation.chain)

    def open(self) -> None:
        """Begin, or go on from the last checkpoint."""
        if not self.directory:
            return
        if self.directory.started:
            self.directory.load(self.simulation)
            self.saved = self.simulation.server.round
            if (before := self.directory.config().rounds) < self.config.rounds:
                log.warning("%s goes on from %d to %d rounds", self.directory.path, before, self.config.rounds)
                self.directory.lengthen(self.config)
            if not self.simulation.finished:
                self.directory.reopen()
        else:
            self.directory.begin(self.config, self.weights)
        self.rounds = self.directory.rounds()
        if self.simulation.finished and not self.directory.complete:
            self.directory.finish(self.simulation, self.summary())

    def note(self, line: dict[str, Any], on_round: OnRound | None) -> None:
        """A round is over."""
        self.rounds.append(line)
        is_latest = line["round"] == self.simulation.server.round
        if self.directory:
            self.directory.append(line)
        if is_latest and self.is_due:
            self.save()
        if on_round and on_round(line, self.config) is STOP:
            self.stopped = True
        if is_latest and self.simulation.finished:
            self.end()

    def end(self) -> None:
        """No round comes after this one, or none that is waited for."""
        self.save()
        if self.directory:
            self.directory.finish(self.simulation, self.summary())

    @property
    def is_due(self) -> bool:
        """Whether the state after the latest round is to be saved."""
        return self.simulation.finished or self.simulation.server.round % self.config.save.every == 0

    def save(self) -> None:
        """A checkpoint, if there is something new to save."""
        if self.directory and self.simulation.server.round > self.saved:
            self.directory.save(self.simulation)
            self.saved = self.simulation.server.round

    def summary(self) -> dict[str, Any]:
        summary = summarise(self.rounds, self.config.evaluate.target or None)
        return summary | privacy.report(self.simulation.chain, self.simulation.released, self.simulation.drawn)

    def result(self) -> Run:
        place = self.directory.path if self.directory else None
        counts, model = self.simulation.label_table, answering_logits(self.simulation.module())
        return Run(self.config, self.rounds, self.summary(), counts, model, place, self.simulation.chain.averaging)


def holds_a_run(directory: RunDirectory) -> UserError:
    return UserError(f"{directory.path} already holds a run; add --resume to continue it, or choose another --out")
