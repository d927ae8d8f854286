"""The result in a sentence, and the reasons to doubt it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any

from fedbraid.core.chain import BY_SIZE, UNIFORMLY
from fedbraid.privacy import budget as privacy
from fedbraid.report.run_groups import RunRecord, by_label, common_metric
from fedbraid.report.run_settings import unshared_task
from fedbraid.report.summaries import by_method, higher_is_better
from fedbraid.report.words import listed, printable, score

WAYS = BY_SIZE, UNIFORMLY

Methods = Mapping[str, Mapping[str, Any]]


def headline(records: Sequence[RunRecord]) -> str:
    """Return the best method by its mean last score, and its distance from the first listed."""
    methods = by_method(records)
    metric = common_metric(records)
    ranked = _ranked(methods, metric)
    if not ranked:
        started = any(method["last"]["n"] for method in methods.values())
        return "Every method diverged." if started else "No round has been evaluated yet."
    best, first = ranked[0], next(iter(methods))
    result = f"{_with_unit(methods[best], metric)} after the last round ({_seeds(methods[best]['last']['n'])})"
    if len(methods) == 1:
        return f"{printable(best)} ends with {result}."
    if len(ranked) == 1:
        return f"{printable(best)} is the only method with a result: {result}."
    other = first if first in ranked[1:] else ranked[1]
    gap = score(_gap(methods, best, other), metric)
    if gap == score(0.0, metric):
        return f"{printable(best)} and {printable(other)} end alike, with {result}."
    points = f"{gap} points above" if higher_is_better(metric) else f"{gap} below"
    role = "the first listed" if other == first else "the next best"
    return f"{printable(best)} is best with {result}, {points} {printable(other)}, {role}."


def caveats(records: Sequence[RunRecord]) -> list[str]:
    """One sentence for each reason not to take the headline at its word."""
    methods = by_method(records)
    return [
        *_about_validation(methods, common_metric(records), _variants(records)),
        *_about_privacy(records),
        *_about_seeds(methods),
        *_about_unlike_seeds(records),
        *_about_close_calls(methods, common_metric(records)),
        *_about_diverged(methods),
        *_about_rounds(records),
        *_about_the_task(records),
        *_about_averaging(records),
    ]


def _variants(records: Sequence[RunRecord]) -> list[list[str]]:
    """The labels of each method that was run with several settings, or of all methods where none was."""
    groups: dict[str, list[str]] = {}
    for label, runs in by_label(records).items():
        groups.setdefault(runs[0].settings.get("method", label), []).append(label)
    varied = [labels for labels in groups.values() if len(labels) > 1]
    return list(groups.values()) if varied else [[label for labels in groups.values() for label in labels]]


def _about_validation(methods: Methods, metric: str, groups: Sequence[Sequence[str]]) -> list[str]:
    """The headline is read from test data; who is best there is not what somebody without them could have known.

    Of a method that was run with several settings, the chosen one stands for it.
    """
    if len(methods) < 2 or not all("chosen" in method for method in methods.values()):
        return []
    parts = []
    for labels in groups:
        ranked = _ranked({label: methods[label] for label in labels}, metric, "chosen_validation")
        if ranked:
            validation, test = (methods[ranked[0]][key] for key in ("chosen_validation", "chosen"))
            parts.append(
                f"{printable(ranked[0])}, with {_worded(validation, metric)} there and {_worded(test, metric)} on the "
                "test set in the same rounds"
            )
    return [f"Chosen on validation samples: {'; '.join(parts)}."] if parts else []


def _about_privacy(records: Sequence[RunRecord]) -> list[str]:
    """Return the privacy that noise bought; of several seeds, the least."""
    parts = []
    for label, runs in by_label(records).items():
        last = [run.rounds[-1].get("privacy", {}) for run in runs if run.rounds]
        for strand in dict.fromkeys(name for each in last for name in each):
            spent = [each[strand] for each in last if strand in each]
            most = max(spent, key=lambda one: inf if one["epsilon"] is None else one["epsilon"])
            epsilon = f"epsilon {privacy.epsilon_text(most['epsilon'])} at delta {most['delta']:g}"
            parts.append(f"{printable(label)} has {epsilon} of a {most['of']}")
    return [f"Privacy: {'; '.join(parts)}."] if parts else []


def _about_seeds(methods: Methods) -> list[str]:
    single = [label for label, method in methods.items() if method["seeds"] == 1]
    if not single:
        return []
    if len(single) == len(methods):
        return ["One seed: no spread known."]
    return [f"One seed for {_labels(single)}: no spread known there."]


def _about_unlike_seeds(records: Sequence[RunRecord]) -> list[str]:
    seeds = {label: sorted({run.seed for run in runs}) for label, runs in by_label(records).items()}
    if len(set(map(tuple, seeds.values()))) == 1:
        return []
    parts = [f"{printable(label)} {', '.join(map(str, numbers))}" for label, numbers in seeds.items()]
    return [f"The methods did not run with the same seeds: {'; '.join(parts)}."]


def _about_close_calls(methods: Methods, metric: str) -> list[str]:
    """The larger standard deviation of the two decides: the generous choice for a claim of no difference."""
    best, *others = _ranked(methods, metric) or [""]
    close = [other for other in others if _gap(methods, best, other) <= _widest(methods, best, other)]
    if not close:
        return []
    return [f"Within one standard deviation of {printable(best)}, so not told apart by these seeds: {_labels(close)}."]


def _about_diverged(methods: Methods) -> list[str]:
    lost = [label for label, method in methods.items() if method["last"]["n"] and not isfinite(method["last"]["mean"])]
    return [f"Diverged, with a last score that is no number: {_labels(lost)}."] if lost else []


def _about_rounds(records: Sequence[RunRecord]) -> list[str]:
    if len({len(run.rounds) for run in records}) == 1:
        return []
    spans = {label: sorted({len(run.rounds) for run in runs}) for label, runs in by_label(records).items()}
    parts = [f"{printable(label)} {_span(lengths)}" for label, lengths in spans.items()]
    return [f"The runs have not all done the same number of rounds: {', '.join(parts)}."]


def _about_the_task(records: Sequence[RunRecord]) -> list[str]:
    apart = unshared_task(records)
    return [f"Not like for like: the methods differ in {listed(apart)}."] if apart else []


def _about_averaging(records: Sequence[RunRecord]) -> list[str]:
    """Papers average by data size or uniformly, which is no part of most of their ideas; alike where sizes are."""
    groups = {way: [k for k, runs in by_label(records).items() if runs[0].averages == way] for way in WAYS}
    sizes = {sum(counts) for record in records for counts in record.label_counts or ([0], [1])}
    if len(sizes) == 1 or not all(groups.values()):
        return []
    parts = ", ".join(f"{way} in {_labels(labels)}" for way, labels in groups.items())
    return [f"Not like for like: clients are averaged {parts}; +sizes or +uniform in a method changes that."]


def _ranked(methods: Methods, metric: str, by: str = "last") -> list[str]:
    """Methods with a finite score, best first; equals stay as listed."""
    known = [label for label, method in methods.items() if method[by]["n"] and isfinite(method[by]["mean"])]
    sign = -1 if higher_is_better(metric) else 1
    return sorted(known, key=lambda label: sign * methods[label][by]["mean"])


def _gap(methods: Methods, one: str, other: str) -> float:
    return abs(float(methods[one]["last"]["mean"] - methods[other]["last"]["mean"]))


def _widest(methods: Methods, one: str, other: str) -> float:
    """The larger of two standard deviations, or less than any gap where neither is known."""
    known = [deviation for label in (one, other) if (deviation := methods[label]["last"]["std"]) is not None]
    return max(known, default=-1.0)


def _with_unit(method: Mapping[str, Any], metric: str) -> str:
    return _worded(method["last"], metric)


def _worded(spread: Mapping[str, Any], metric: str) -> str:
    text = score(spread["mean"], metric, spread["std"])
    return f"{text} % accuracy" if metric == "accuracy" else f"a loss of {text}"


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"mean of {count} seeds"


def _labels(labels: list[str]) -> str:
    return listed([printable(label) for label in labels])


def _span(lengths: list[int]) -> str:
    return str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
