"""Writes a run while it is trained: its log, its checkpoints, and in the end its model and its numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Generic, TypeVar

from torch import Tensor

from fedbraid.config.schema import Config
from fedbraid.core.outputs import answering_logits
from fedbraid.privacy import budget as privacy
from fedbraid.report.summaries import summarise
from fedbraid.storage.files import is_full
from fedbraid.training.callbacks import RunState, notify
from fedbraid.training.federation import Federation
from fedbraid.training.results import Run
from fedbraid.training.run_directory import RunDirectory, holds_a_run

log = logging.getLogger("fedbraid")

Some = TypeVar("Some", bound=Federation)


class Stop(Enum):
    """Answers of `on_round`."""

    STOP = "stop"


STOP = Stop.STOP
"""The answer of `on_round` that ends a run before its last round."""
OnRound = Callable[[dict[str, Any], Config], object]
"""Called after each round with its line of the log and the configuration. Its answers are ignored, but for `STOP`."""


@dataclass(eq=False)
class RunWriter(Generic[Some]):
    """A run while it is trained, and its directory. A run without a directory is only kept in memory."""

    federation: Some
    config: Config  # resolved
    directory: RunDirectory | None
    weights: Mapping[str, Tensor] | None = None  # initial ones of a user's network, which no seed makes again
    rounds: list[dict[str, Any]] = field(default_factory=list)
    saved: int = 0  # the round of the last checkpoint
    opened: bool = False  # whether training began: errors after that are failures, not refusals
    stopped: bool = False  # by the answer of `on_round`, or by a callback
    callbacks: Sequence[Any] = ()

    def locked(self) -> AbstractContextManager[None]:
        return self.directory.locked() if self.directory else nullcontext()

    def check(self, resume: bool) -> None:
        """Refuse a directory that holds a run, unless that run is resumed with the same settings."""
        if not self.directory:
            return
        if not self.directory.started:
            self.directory.check_vacant()
            return
        if not resume:
            raise holds_a_run(self.directory)
        self.directory.check_same(self.config)
        self.directory.check_length(self.config.rounds, self.federation.chain)

    @cached_property
    def state(self) -> RunState:
        """The run as callbacks see it, once it is open."""
        place = self.directory.path if self.directory else None
        return RunState(self.config, self.rounds, place, lambda: answering_logits(self.federation.module()))

    def notify(self, hook: str) -> None:
        """Call a hook of the callbacks, which may stop the run."""
        if self.callbacks:
            notify(self.callbacks, hook, self.state)
            self.stopped = self.stopped or self.state.stopping

    def open(self) -> None:
        """Begin the run in its directory, or load its last checkpoint."""
        self._open_directory()
        if not self.federation.finished:
            self.notify("on_start")

    def _open_directory(self) -> None:
        if not self.directory:
            return
        if self.directory.started:
            self.directory.load(self.federation)
            self.saved = self.federation.server.round
            if (before := self.directory.config().rounds) < self.config.rounds:
                log.warning("%s goes on from %d to %d rounds", self.directory.path, before, self.config.rounds)
                self.directory.lengthen(self.config)
            if not self.federation.finished:
                self.directory.reopen()
        else:
            self.directory.begin(self.config, self.weights)
        self.rounds = self.directory.rounds()
        if self.federation.finished and not self.directory.complete:
            self.directory.check_unmade()
            self.directory.finish(self.federation, self.summary())

    def note(self, line: dict[str, Any], on_round: OnRound | None) -> None:
        """Record a finished round: its line, the checkpoint where one is due, and the callback."""
        self.rounds.append(line)
        is_latest = line["round"] == self.federation.server.round
        if self.directory:
            with self._reporting():
                self.directory.append(line)
        if is_latest and self.is_due:
            self.save()
        if on_round and on_round(line, self.config) is STOP:
            self.stopped = True
        self.notify("on_round")
        if is_latest and self.federation.finished:
            self.end()

    def end(self) -> None:
        """Save the last state and write the summary: no further round follows."""
        self.save()
        if self.directory:
            with self._reporting():
                self.directory.finish(self.federation, self.summary())
        self.notify("on_end")

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Log what the run has reached if it ends because the disk is full: nothing else would show it."""
        try:
            yield
        except OSError as error:
            if is_full(error):
                log.error("%s", self._reached())
            raise

    def _reached(self) -> str:
        """Say in one line how far the run is, and how good its model."""
        so_far, done = self.summary(), self.rounds[-1]["round"] if self.rounds else 0
        line = f"{self.config.called}, seed {self.config.seed}: {done} of {self.config.rounds} rounds are trained"
        if so_far["last"] is None:
            return line
        line += f"; {so_far['metric']} {so_far['last']:.4g} after round {so_far['last_round']}"
        return (
            line if so_far["best"] is None else f"{line}, best {so_far['best']:.4g} after round {so_far['best_round']}"
        )

    @property
    def is_due(self) -> bool:
        """Return whether the state after the latest round is to be saved."""
        return self.federation.finished or self.federation.server.round % self.config.save.every == 0

    def save(self) -> None:
        """Write a checkpoint, if there is something new to save."""
        if self.directory and self.federation.server.round > self.saved:
            with self._reporting():
                self.directory.save(self.federation)
            self.saved = self.federation.server.round

    def summary(self) -> dict[str, Any]:
        summary = summarise(self.rounds, self.config.evaluate.target or None)
        return summary | privacy.report(self.federation.chain, self.federation.released, self.federation.drawn)

    def result(self) -> Run:
        place = self.directory.path if self.directory else None
        counts, model = self.federation.label_table, answering_logits(self.federation.module())
        return Run(self.config, self.rounds, self.summary(), counts, model, place, self.federation.chain.averaging)
