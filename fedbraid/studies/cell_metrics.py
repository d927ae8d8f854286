"""Metrics that read a cell's number from the record of a run: `best`, `mean_last(n=10)`, `rounds_to(target=0.55)` …

What is read is the accuracy on the test set, unless `of` names another key of the rounds' log, such as
`last(of='drift.variance')`. Of accuracies more is better, those of `evaluate.metrics` know it themselves, and of
everything else less is, unless `better='higher'` says otherwise. What was never reached took infinitely long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from itertools import accumulate
from statistics import fmean, pstdev
from typing import Any

from fedbraid.config.terms import terms
from fedbraid.errors import UserError, unknown
from fedbraid.studies.key_labels import analysis_words, key_words
from fedbraid.studies.log_keys import BOTH, PER_CLIENT, VALIDATION, needs
from fedbraid.studies.round_series import ACCURACY, aggregations, course, diverged, is_share, more_is_better, moved
from fedbraid.studies.run_records import Record

A_METRIC = "a metric; write one such as best or rounds_to(target=0.55)"
UNNAMED = "calculated"
"""What a calculation gives where the recipe has no words for it."""


@dataclass(frozen=True)
class CellMetric:
    """One number of a run."""

    label: str  # in words
    read: Callable[[Record], float | None]  # None = the record does not have it; inf = never reached
    higher_is_better: bool = True
    percent: float = 1.0
    """By what its values are multiplied where a recipe's unit is per cent: 100 for shares."""
    of: str = ""  # the key of the log that it reads, if it reads one
    needs: str = ""  # a setting without which the log does not have it, such as evaluate.per_client = true
    analysis: str = ""  # an analysis of the finished run that makes it
    rounds: int = 0  # how many of the last ones it is over
    until: int = 0  # the round that it is read in, if it names one
    beside: str = ""  # a row whose run, in the same column and with the same seed, it is measured by
    given: Callable[[Record], CellMetric] | None = None  # what it is once that run is known
    never: float = math.inf  # its value where a target was never reached
    describes: bool = False  # what was there before training: neither more nor less of it is better
    text: str = ""  # as it was written


def parse(text: str) -> CellMetric:
    """The metric written as `text`.

    >>> parse("mean_last(n=10)").label
    'mean accuracy of the last 10 evaluated rounds'
    """
    found = terms(text, A_METRIC)
    if len(found) != 1:
        raise UserError(f"{text!r} is not {A_METRIC}")
    name, given = found[0]
    if name not in METRICS:
        raise unknown("metric", name, METRICS)
    known = signature(METRICS[name]).parameters
    for key, value in given.items():
        if key not in known:
            raise (
                unknown(f"option of metric {name!r}", key, known)
                if known
                else UserError(f"metric {name!r} takes no options; leave {key!r} out")
            )
        _check(name, key, value)
    for key, parameter in known.items():
        if parameter.default is Parameter.empty and key not in given:
            raise UserError(f"metric {name!r} needs a value for {key}, such as {name}({key}={EXAMPLES[key]!r})")
    return replace(METRICS[name](**given), text=text)


EXAMPLES: dict[str, Any] = {
    "of": "loss",
    "better": "higher",
    "name": "hessian.top",
    "n": 10,
    "round": 50,
    "number": 0,
    "target": 0.55,
    "row": "FedAvg",
    "share": 0.1,
}


def _check(metric: str, key: str, value: Any) -> None:
    wanted = type(EXAMPLES[key])
    fits = isinstance(value, (int, float) if wanted is float else wanted) and not isinstance(value, bool)
    if key in ("n", "round") and fits:
        fits = value >= 1
    if key == "better" and fits:
        fits = value in ("higher", "lower")
    if key == "share" and fits:
        fits = 0 < value <= 1
    if key == "number" and fits:
        fits = value >= 0
    if not fits:
        raise UserError(f"metric {metric!r} takes a {key} such as {EXAMPLES[key]!r}, not {value!r}")


# --- the metrics


def _metric(words: str, of: str, better: str, read: Callable[[Record], float | None], **more: Any) -> CellMetric:
    """A metric whose values are of the kind of `of`."""
    higher = better == "higher" if better else more_is_better(of)
    return CellMetric(words, read, higher, 100.0 if is_share(of) else 1.0, of=of, needs=needs(of), **more)


def _end(record: Record, of: str, n: int) -> list[float]:
    """The last `n` values. A model that is not finite has none at the end, whatever it had before."""
    return [math.nan] if diverged(record, of) else [value for _, value in course(record, of)][-n:]


def _of_some(f: Callable[[Sequence[float]], float], values: Iterable[float]) -> float | None:
    some = list(values)
    if any(map(math.isnan, some)):
        return math.nan
    return f(some) if some else None


def best(of: str = ACCURACY, better: str = "") -> CellMetric:
    made = _metric(f"best {'test ' if of == ACCURACY else ''}{key_words(of)} of any round", of, better, _none)
    pick = max if made.higher_is_better else min

    def read(r: Record) -> float | None:
        found = _of_some(pick, (v for _, v in course(r, of)))
        return math.nan if found is None and diverged(r, of) else found

    return replace(made, read=read)


def chosen(of: str = ACCURACY, better: str = "") -> CellMetric:
    """Read the test score of the round that validation samples would choose: by accuracy, if there is one."""
    made = _metric(f"test {key_words(of)} of the round that is best on validation samples", of, better, _none)

    def read(r: Record) -> float | None:
        tested = dict(course(r, of))
        hits = [] if of == "loss" else course(r, "validation_accuracy")
        rounds = [(number, score) for number, score in hits or course(r, "validation_loss") if number in tested]
        pick = max if hits else min
        if not rounds:
            return math.nan if diverged(r, of) else None
        return tested[pick(rounds, key=lambda pair: pair[1])[0]]

    return replace(made, read=read, needs=BOTH.join(filter(None, [made.needs, VALIDATION])))


def _none(record: Record) -> None:
    return None


def last(of: str = ACCURACY, better: str = "") -> CellMetric:
    return _metric(f"{key_words(of)} of the last round", of, better, lambda r: _of_some(fmean, _end(r, of, 1)))


def mean_last(n: int, of: str = ACCURACY, better: str = "") -> CellMetric:
    return _metric(
        f"mean {key_words(of)} of the last {n} evaluated rounds",
        of,
        better,
        lambda r: _of_some(fmean, _end(r, of, n)),
        rounds=n,
    )


def std_last(n: int, of: str = ACCURACY) -> CellMetric:
    if n < 2:
        raise UserError(f"metric 'std_last' is over 2 rounds or more, not {n}")
    words = f"standard deviation of the {key_words(of)} over the last {n} evaluated rounds"
    return _metric(words, of, "lower", lambda r: _of_some(pstdev, _end(r, of, n)), rounds=n)


def at(round: int, of: str = ACCURACY, better: str = "") -> CellMetric:
    def read(r: Record) -> float | None:
        if diverged(r, of, by=round):
            return math.nan
        return _of_some(lambda values: values[-1], (v for number, v in course(r, of) if number <= round))

    return _metric(f"{key_words(of)} after round {round}", of, better, read, until=round)


def mean(of: str, better: str = "") -> CellMetric:
    return _metric(
        f"mean {key_words(of)} of a round", of, better, lambda r: _of_some(fmean, _end(r, of, len(r.rounds)))
    )


def total(of: str, better: str = "") -> CellMetric:
    return _metric(
        f"{key_words(of)} of all rounds", of, better, lambda r: _of_some(math.fsum, _end(r, of, len(r.rounds)))
    )


WAITING = {
    "rounds_to": "rounds",
    "aggregations_to": "aggregations",
    "bytes_to": "bytes moved",
    "seconds_to": "seconds",
}
"""Metrics that wait for a target, and what they count."""


def _until(
    name: str, target: float | None, row: str, of: str, better: str, spent: Callable[[Record], Sequence[float]]
) -> CellMetric:
    """Read what was spent until a round of the log reached the target, or the best of another row; `spent` has it after
    each round."""
    if (target is None) == (not row):
        way = f"such as {name}(target=0.55), or the row whose best it is, such as {name}(row='FedAvg')"
        raise UserError(f"metric {name!r} needs a value for target, {way}; not both")
    if target is not None and is_share(of) and not 0 < target <= 1:
        raise UserError(f"metric {name!r} waits for a share, such as target=0.55 for 55 %, not {target:g}")
    goal, words = best(of, better), WAITING[name]

    def read(r: Record) -> float | None:
        values = course(r, of)
        if target is None or (not values and not diverged(r, of)):
            return None
        reached = (number for number, v in values if (v >= target if goal.higher_is_better else v <= target))
        first = next(reached, None)
        return math.inf if first is None else float(spent(r)[list(r.rounds).index(first)])

    def given(other: Record) -> CellMetric:
        found = goal.read(other)
        if found is None or math.isnan(found):
            return CellMetric(words, _none)
        return _until(name, found, "", of, better, spent)

    if target is None:
        label = f"{words} until the {key_words(of)} is the best of {row}"
        return CellMetric(label, read, higher_is_better=False, of=of, needs=needs(of), beside=row, given=given)
    shown = f"{target:.4g}" if not is_share(of) else f"{100 * target:.4g} %"
    return CellMetric(
        f"{words} until the {key_words(of)} is {shown}", read, higher_is_better=False, of=of, needs=needs(of)
    )


def rounds_to(target: float | None = None, row: str = "", of: str = ACCURACY, better: str = "") -> CellMetric:
    return _until("rounds_to", target, row, of, better, lambda r: r.rounds)


def aggregations_to(target: float | None = None, row: str = "", of: str = ACCURACY, better: str = "") -> CellMetric:
    return _until("aggregations_to", target, row, of, better, aggregations)


def bytes_to(target: float | None = None, row: str = "", of: str = ACCURACY, better: str = "") -> CellMetric:
    return _until("bytes_to", target, row, of, better, lambda r: list(accumulate(moved(r))))


def seconds_to(target: float | None = None, row: str = "", of: str = ACCURACY, better: str = "") -> CellMetric:
    return _until("seconds_to", target, row, of, better, lambda r: list(accumulate(r.series["seconds"])))


def speedup(row: str, of: str = ACCURACY, better: str = "") -> CellMetric:
    label = f"rounds until {row} has its best {key_words(of)}, over those until it is reached here"

    def given(other: Record) -> CellMetric:
        to_best = rounds_to(row=row, of=of, better=better).given
        assert to_best is not None
        rounds = to_best(other).read

        def read(r: Record) -> float | None:
            there, here = rounds(other), rounds(r)
            return None if there is None or here is None else there / here  # 0 = never reached here

        return CellMetric(label, read)

    return CellMetric(label, _none, higher_is_better=True, of=of, needs=needs(of), beside=row, given=given, never=0.0)


def bytes_moved() -> CellMetric:
    return CellMetric("bytes moved in all rounds", lambda r: math.fsum(moved(r)), higher_is_better=False)


def bytes_per_round() -> CellMetric:
    return CellMetric("bytes moved in a round", lambda r: _of_some(fmean, moved(r)), higher_is_better=False)


def seconds() -> CellMetric:
    return CellMetric("seconds", lambda r: r.totals["seconds"], higher_is_better=False)


def forward_samples() -> CellMetric:
    return CellMetric("samples through the network", lambda r: r.totals["forward_samples"], higher_is_better=False)


def client_std(round: int = 0) -> CellMetric:
    words = "standard deviation of the clients' accuracies" + _after(round)
    return replace(_clients("std", round), label=words)


def client_variance(round: int = 0) -> CellMetric:
    std = _clients("std", round)

    def read(r: Record) -> float | None:
        value = std.read(r)
        return None if value is None else value**2

    return replace(std, label="variance of the clients' accuracies" + _after(round), read=read, percent=1e4)


def mean_clients(round: int = 0) -> CellMetric:
    return replace(_clients("mean", round), label="mean of the clients' accuracies" + _after(round))


def _clients(part: str, round: int) -> CellMetric:
    of = f"client_accuracy.{part}"
    return at(round, of) if round else last(of)


def _after(round: int) -> str:
    return f" after round {round}" if round else ""


def worst_clients(share: float = 0.1) -> CellMetric:
    def read(r: Record) -> float | None:
        some = sorted(a for a in r.client_accuracy or () if a is not None)
        if some and not r.series["finite"][-1]:
            return math.nan
        return _of_some(fmean, some[: max(1, int(share * len(some) + 1e-9))])

    return CellMetric(f"mean accuracy of the worst {share:.0%} of the clients", read, True, 100.0, needs=PER_CLIENT)


def group(name: str) -> CellMetric:
    return replace(last(f"group_accuracy.{name}"), label=f"accuracy on {name} classes")


def class_accuracy(number: int) -> CellMetric:
    def read(r: Record) -> float | None:
        found = _classes(r)
        return found[number] if 0 <= number < len(found) else None

    return CellMetric(f"accuracy on class {number}", read, True, 100.0)


def _classes(record: Record) -> list[float | None]:
    """The accuracy on each class at the end, which a model that is not finite does not have."""
    found = list(record.per_class or ())
    return found if record.series["finite"][-1] else [math.nan] * len(found)


def class_std() -> CellMetric:
    def read(r: Record) -> float | None:
        return _of_some(pstdev, (a for a in _classes(r) if a is not None))

    return CellMetric("standard deviation of the classes' accuracies", read, False, 100.0)


def skew(name: str) -> CellMetric:
    """Read the skew of the split that a run was made on: `kl`, `gini`, `classes` …"""
    from fedbraid.studies.skew import SKEWS, skew_of  # which most studies do without

    if name not in SKEWS:
        raise unknown("skew", name, SKEWS)
    return CellMetric(
        SKEWS[name][0], lambda r: skew_of(name, r.label_counts) if r.label_counts else None, describes=True
    )


def analysis(name: str, better: str = "lower") -> CellMetric:
    """`hessian.top`, or `features(clients=3).mmd` where the analysis is asked for with options."""
    text, _, quantity = name.rpartition(".")

    def read(r: Record) -> float | None:
        found = r.analyses.get(text, {})
        return (math.nan if found[quantity] is None else found[quantity]) if quantity in found else None

    return CellMetric(analysis_words(name), read, better == "higher", analysis=text)


def calculated(better: str = "lower") -> CellMetric:
    return CellMetric(UNNAMED, _none, better == "higher")


METRICS: dict[str, Callable[..., CellMetric]] = {
    "best": best,
    "chosen": chosen,
    "last": last,
    "mean_last": mean_last,
    "std_last": std_last,
    "at": at,
    "mean": mean,
    "total": total,
    "rounds_to": rounds_to,
    "aggregations_to": aggregations_to,
    "bytes_to": bytes_to,
    "seconds_to": seconds_to,
    "speedup": speedup,
    "bytes": bytes_moved,
    "bytes_per_round": bytes_per_round,
    "seconds": seconds,
    "seconds_per_round": lambda: replace(mean("seconds"), label="seconds of a round"),
    "forward_samples": forward_samples,
    "client_std": client_std,
    "client_variance": client_variance,
    "mean_clients": mean_clients,
    "worst_clients": worst_clients,
    "group": group,
    "class_accuracy": class_accuracy,
    "class_std": class_std,
    "skew": skew,
    "analysis": analysis,
    "calculated": calculated,
}
