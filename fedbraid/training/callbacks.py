"""Callbacks: objects that follow runs while they are trained, and can stop them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from pathlib import Path
from typing import Any

from torch import nn

from fedbraid.config.schema import Config
from fedbraid.core.metrics import METRICS
from fedbraid.errors import UserError
from fedbraid.report.run_groups import metric_of, validated
from fedbraid.report.summaries import higher_is_better

HOOKS = "on_start", "on_round", "on_end"


class CallbackError(Exception):
    """Carries what a callback raised past the code that handles failing runs: it is no failure of a run."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@dataclass(eq=False)
class RunState:
    """A run in training, as its callbacks see it."""

    config: Config
    """The resolved configuration."""
    rounds: Sequence[dict[str, Any]]
    """The lines of the log so far, those of a resumed run included."""
    directory: Path | None
    """The run's directory; None if the run is not recorded."""
    make_model: Callable[[], nn.Module] = field(repr=False)
    stopping: bool = False
    """Whether `stop` was called."""

    @property
    def line(self) -> dict[str, Any] | None:
        """The last line of the log; None before the first round."""
        return self.rounds[-1] if self.rounds else None

    @property
    def model(self) -> nn.Module:
        """The network with the weights after the last round, as `Run.model`; a copy, made each time."""
        return self.make_model()

    def stop(self) -> None:
        """End the run after this round. It is saved as it is, and can be resumed."""
        self.stopping = True


class Callback:
    """Follows runs. A callback has any of these hooks, and need not derive from this class.

    The callbacks of a comparison follow all of its runs, of which several may go on at once: keep what belongs to a run
    by its `state`, which is the same object from `on_start` to `on_end`. A callback does not change a run, but for
    `state.stop()`. What a hook raises ends everything and is raised unchanged.
    """

    def on_start(self, state: RunState) -> None:
        """Called before the first round, or before the next one of a resumed run."""

    def on_round(self, state: RunState) -> None:
        """Called after each round, when its line is recorded."""

    def on_end(self, state: RunState) -> None:
        """Called after the last round, when the model and the summary are recorded; not if the run failed."""


@dataclass(frozen=True)
class EarlyStopping(Callback):
    """Stop a run whose score has not improved for some evaluations.

    It has no memory but the log, so that a resumed run stops where one that was not interrupted does.

    Args:
        patience: the number of evaluations without improvement after which the run ends.
        metric: a key of the log, such as `validation_loss` or `auroc`. Without one it is the accuracy, or the loss of a
            regression: on validation samples with `evaluate.validation`, otherwise on the test set.
        min_delta: a score counts as an improvement if it is better than the best by more than this.
    """

    patience: int = 10
    metric: str | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise UserError(f"the patience of EarlyStopping must be 1 or more, not {self.patience}")
        if not 0 <= self.min_delta < float("inf"):
            raise UserError(f"the min_delta of EarlyStopping must be 0 or more, not {self.min_delta}")

    def on_round(self, state: RunState) -> None:
        metric = self.metric or _default_metric(state.rounds)
        if metric is None:
            return
        if not any(metric in line for line in state.rounds):
            raise UserError(f"EarlyStopping watches {metric!r}, which the log does not have; {_known(state.rounds)}")
        scores = [_score(line, metric) for line in state.rounds if line.get(metric) is not None]
        if self.evaluations_without_improvement(scores, _higher_is_better(metric)) >= self.patience:
            state.stop()

    def evaluations_without_improvement(self, scores: Sequence[float], higher: bool) -> int:
        """Return how many of the last scores are no better than the best before them; NaN is never better."""
        best, since = nan, 0
        for score in scores:
            gain = score - best if higher else best - score
            better = isfinite(score) and (not isfinite(best) or gain > self.min_delta)
            best, since = (score, 0) if better else (best, since + 1)
        return since


def check_callbacks(callbacks: Sequence[Any]) -> tuple[Any, ...]:
    """Return callbacks as a tuple; refuse what is none."""
    if not isinstance(callbacks, list | tuple):
        raise UserError(f"callbacks is a list, such as [fedbraid.EarlyStopping()], not {callbacks!r}")
    for callback in callbacks:
        if isinstance(callback, type):
            raise UserError(f"{callback.__name__} is a class; give an object: callbacks=[{callback.__name__}()]")
        if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
            also = "; a function of a line and the configuration is given as on_round=" if callable(callback) else ""
            raise UserError(f"{callback!r} is no callback: it has none of {', '.join(HOOKS)}{also}")
    return tuple(callbacks)


def notify(callbacks: Sequence[Any], hook: str, state: RunState) -> None:
    """Call a hook of each callback that has it. What one raises passes as a CallbackError."""
    for callback in callbacks:
        called = getattr(callback, hook, None)
        if called is None:
            continue
        try:
            called(state)
        except Exception as error:
            raise CallbackError(error) from error


def _default_metric(rounds: Sequence[dict[str, Any]]) -> str | None:
    metric = metric_of(rounds)
    return validated(rounds, metric) or metric


def _higher_is_better(metric: str) -> bool:
    return METRICS[metric].higher_is_better if metric in METRICS else higher_is_better(metric.rpartition("_")[2])


def _score(line: dict[str, Any], metric: str) -> float:
    """A model of NaN still guesses a class, and hits some."""
    return float(line[metric]) if line.get("finite") is not False else nan


def _known(rounds: Sequence[dict[str, Any]]) -> str:
    names = [key for key in rounds[-1] if key in METRICS or key.rpartition("_")[2] in ("accuracy", "loss")]
    return f"it has {', '.join(names)}"
