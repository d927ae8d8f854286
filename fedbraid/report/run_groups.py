"""Runs in memory, grouped by method: the input of every report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fedbraid.core.metrics import METRICS
from fedbraid.errors import UserError

Round = Mapping[str, Any]


@dataclass(frozen=True)
class RunRecord:
    """One run, finished or still going."""

    label: str
    """The method as the user wrote it, e.g. `fedavg+disco(a=0.4)`."""
    seed: int
    rounds: tuple[dict[str, Any], ...]
    """One line of `rounds.jsonl` each; scores are None on rounds that were not evaluated."""
    settings: dict[str, Any]
    label_counts: list[list[int]] | None
    """Training samples, `[clients][classes]`; None where there are no classes."""
    averages: str = ""
    """The way clients are averaged, in words; empty where that is not known."""


def by_label(records: Sequence[RunRecord]) -> dict[str, tuple[RunRecord, ...]]:
    """The runs of each method, methods in the order in which they were listed."""
    if not records:
        raise UserError("there is no run to report on; give at least one run that has finished a round")
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(record.label, []).append(record)
    return {label: tuple(group) for label, group in groups.items()}


def metric_of(rounds: Sequence[Round]) -> str | None:
    """`accuracy` where it was measured, else `loss` (regression), else None: nothing was evaluated yet."""
    for metric in ("accuracy", "loss"):
        if any(entry.get(metric) is not None for entry in rounds):
            return metric
    return None


def validated(rounds: Iterable[Round], metric: str | None) -> str | None:
    """The key of the same score on validation samples, where the log has it."""
    key = f"validation_{metric}"
    return key if any(entry.get(key) is not None for entry in rounds) else None


def client_scores(rounds: Sequence[Round]) -> dict[str | int, float | None]:
    """Each client's score in the last round that has any: by its name where clients have names, else by its number."""
    tables = (entry[key] for entry in reversed(rounds) for key in ("client_accuracy", "client_loss") if key in entry)
    table = next(tables, None)
    return dict(zip(table.get("names", range(len(table["each"]))), table["each"], strict=True)) if table else {}


def further_metrics(rounds: Iterable[Round]) -> list[str]:
    """Those of `evaluate.metrics` that the log has, in its order."""
    return list(dict.fromkeys(key for entry in rounds for key in entry if key in METRICS))


class Logged(Protocol):
    """Anything with the lines of a log."""

    @property
    def rounds(self) -> Sequence[Round]: ...


def common_metric(records: Sequence[Logged]) -> str:
    """The one metric by which all the runs can be compared."""
    found = {metric for record in records if (metric := metric_of(record.rounds)) is not None}
    if len(found) > 1:
        raise UserError("some runs measure accuracy and others only a loss; compare runs of one task at a time")
    return found.pop() if found else "accuracy"
