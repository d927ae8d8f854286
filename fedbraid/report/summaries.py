"""Summaries of runs: the few numbers that are compared, first per run, then across seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from statistics import fmean, stdev
from typing import Any

from fedbraid.core.metrics import METRICS
from fedbraid.errors import UserError
from fedbraid.report.run_groups import (
    Round,
    RunRecord,
    by_label,
    client_scores,
    common_metric,
    further_metrics,
    metric_of,
    validated,
)

SCORES = ("best", "last", "mean_last5", "mean_last10")
CHOSEN = ("chosen", "chosen_validation", "last_validation")
COSTS = ("bytes_down", "bytes_up", "forward_samples", "backward_samples", "seconds")


def summarise(rounds: Sequence[Round], target: float | None = None) -> dict[str, Any]:
    """One run in numbers. Accuracies are fractions; what a model that is not finite scores is NaN.

    Of further metrics there is the last value, by name. Where training samples were held out to validate on, the target
    is one for them, and `chosen` is the test score of the round that is best on them.
    """
    metric = metric_of(rounds)
    scored = _scored(rounds, metric)
    held_out = _scored(rounds, validated(rounds, metric))
    latest = next((entry for entry in reversed(rounds) if metric and entry[metric] is not None), None)
    scores = [score for _, score in scored]
    best_round, best = _best(scored, metric)
    return {
        "metric": metric,
        "rounds": len(rounds),
        "evaluated": len(scored),
        "best": best,
        "best_round": best_round,
        "last": scores[-1] if scores else None,
        "last_round": scored[-1][0] if scored else None,
        "mean_last5": mean(scores[-5:]),
        "mean_last10": mean(scores[-10:]),
        "target": target,
        "rounds_to_target": _rounds_to(target, held_out or scored, metric),
        "diverged": next((int(entry["round"]) for entry in rounds if not _is_finite(entry)), None),
        **{cost: sum(entry[cost] for entry in rounds) for cost in COSTS},
        **{name: _score(latest, name) if latest else None for name in further_metrics(rounds)},
        **(_chosen(scored, held_out, metric) if held_out else {}),
        **_named_clients(rounds),
    }


def across(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several seeds of one method: every number as `{"mean", "std", "n"}`, with n the seeds that have one."""
    if not summaries:
        raise UserError("there is no summary to average; give at least one")
    reached = spread([summary["rounds_to_target"] for summary in summaries])
    further = further_metrics(summaries)
    chosen = [key for key in CHOSEN if any(key in summary for summary in summaries)]
    return {
        "metric": next((summary["metric"] for summary in summaries if summary["metric"]), None),
        "seeds": len(summaries),
        "target": summaries[0]["target"],
        **{key: spread([summary.get(key) for summary in summaries]) for key in (*SCORES, *chosen, *COSTS, *further)},
        "rounds_to_target": {**reached, "reached": reached["n"], "of": len(summaries)},
    }


def by_method(records: Sequence[RunRecord], target: float | None = None) -> dict[str, dict[str, Any]]:
    """`across` for each method, in the order in which the methods were listed."""
    groups = by_label(records)
    common_metric(records)
    return {label: across([summarise(run.rounds, target) for run in runs]) for label, runs in groups.items()}


def higher_is_better(metric: str | None) -> bool:
    """The metric by which runs are compared is accuracy, or a loss; the further ones say it themselves."""
    return METRICS[metric].higher_is_better if metric in METRICS else metric != "loss"


def mean(values: Sequence[float]) -> float | None:
    """None of nothing; NaN as soon as one value is not finite, so that a diverged run cannot hide in a mean."""
    if not values:
        return None
    return fmean(values) if all(map(isfinite, values)) else nan


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and sample standard deviation of the values that are there; one value has no deviation."""
    known = [value for value in values if value is not None]
    return {"mean": mean(known), "std": _deviation(known), "n": len(known)}


def _deviation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    return stdev(values) if all(map(isfinite, values)) else nan


def _scored(rounds: Sequence[Round], key: str | None) -> list[tuple[int, float]]:
    """The rounds that have this score, and the score."""
    return [(int(entry["round"]), _score(entry, key)) for entry in rounds if key and entry.get(key) is not None]


def _chosen(
    scored: Sequence[tuple[int, float]], held_out: Sequence[tuple[int, float]], metric: str | None
) -> dict[str, Any]:
    """The round that is best on validation samples, of those that were tested too, and its score on the test set."""
    tested = dict(scored)
    number, best = _best([(number, score) for number, score in held_out if number in tested], metric)
    return {
        "chosen": best if number is None else tested[number],
        "chosen_round": number,
        "chosen_validation": best,
        "last_validation": held_out[-1][1],
    }


def _named_clients(rounds: Sequence[Round]) -> dict[str, Any]:
    """Clients' last scores where they have names, as in a federation. Of numbered ones the log is enough."""
    scores = {name: score for name, score in client_scores(rounds).items() if isinstance(name, str)}
    return {"clients": scores} if scores else {}


def _is_finite(entry: Round) -> bool:
    return entry.get("finite") is not False


def _score(entry: Round, metric: str) -> Any:
    """A model of NaN still guesses a class, and hits some."""
    return entry[metric] if _is_finite(entry) else nan


def _best(scored: Sequence[tuple[int, float]], metric: str | None) -> tuple[int | None, float | None]:
    finite = [(number, score) for number, score in scored if isfinite(score)]
    if not finite:
        return None, nan if scored else None
    # max and min keep the first of equals: the earliest round that was that good.
    pick = max if higher_is_better(metric) else min
    return pick(finite, key=lambda pair: pair[1])


def _rounds_to(target: float | None, scored: Sequence[tuple[int, float]], metric: str | None) -> int | None:
    if target is None:
        return None
    if higher_is_better(metric):
        if not 0 <= target <= 1:
            raise UserError(f"the target accuracy {target:g} is not a fraction; write 0.7 for 70 %")
        return next((number for number, score in scored if score >= target), None)
    return next((number for number, score in scored if score <= target), None)
