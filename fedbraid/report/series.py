"""The numbers behind the pictures: a curve for each method, a row of class scores for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbraid.report.run_groups import RunRecord, by_label

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """A method's way over rounds, or over what they cost: mean and standard deviation over its seeds."""

    x: Floats
    mean: Floats
    std: Floats  # 0 where there is one seed
    seeds: int

    @property
    def low(self) -> Floats:
        return self.mean - self.std

    @property
    def high(self) -> Floats:
        return self.mean + self.std


def curve(scores: Sequence[Mapping[int, float]], places: Sequence[Mapping[int, float]]) -> Curve | None:
    """Return the mean over seeds, from each seed's score and place on the axis by round; None if they share no round.

    Only rounds that every seed has count: a mean over changing seeds would jump without any learning.
    """
    common = sorted(set.intersection(*map(set, scores))) if scores else []
    if not common:
        return None
    y, x = (np.array([[by[number] for number in common] for by in each], dtype=np.float64) for each in (scores, places))
    with np.errstate(invalid="ignore"):  # a loss may be infinite, and its spread is no number then
        std = y.std(axis=0, ddof=1) if len(y) > 1 else np.zeros(len(common))
    return Curve(x.mean(axis=0), y.mean(axis=0), std, len(y))


def series(records: Sequence[RunRecord], metric: str, by: str = "round") -> dict[str, Curve]:
    """Return a curve for each method that has a value, by `round` or by all `bytes` moved so far."""
    found = {}
    for label, runs in by_label(records).items():
        scored = [(scores, _places(run.rounds, by)) for run in runs if (scores := _scores(run.rounds, metric))]
        found[label] = curve(*map(list, zip(*scored, strict=True))) if scored else None
    return {label: one for label, one in found.items() if one is not None}


def class_scores(records: Sequence[RunRecord]) -> tuple[list[str], Floats]:
    """Return the methods and their final accuracies `[methods, classes]`, mean over seeds; NaN where unknown."""
    found: dict[str, list[Floats]] = {}
    for record in (run for runs in by_label(records).values() for run in runs):
        # A class without a test sample has no accuracy: None or NaN, both become NaN here.
        measured = [entry["per_class"] for entry in record.rounds if entry.get("per_class")]
        if measured:
            found.setdefault(record.label, []).append(np.array(measured[-1], dtype=np.float64))
    width = max((scores.size for seeds in found.values() for scores in seeds), default=0)
    rows = np.full((len(found), width), np.nan)
    for row, seeds in zip(rows, found.values(), strict=True):
        padded = np.stack([np.pad(scores, (0, width - scores.size), constant_values=np.nan) for scores in seeds])
        known = ~np.isnan(padded).all(axis=0)
        row[known] = np.nanmean(padded[:, known], axis=0)
    return list(found), rows


def grouped(values: Floats, limit: int, axis: int) -> tuple[Floats, int]:
    """Sums over neighbours along `axis` so that at most `limit` are left, and how many went into each."""
    size = -(-values.shape[axis] // limit)
    starts = np.arange(0, values.shape[axis], size)
    return np.add.reduceat(values, starts, axis=axis), size


def _scores(rounds: Sequence[dict[str, Any]], metric: str) -> dict[int, float]:
    return {entry["round"]: entry[metric] for entry in rounds if entry.get(metric) is not None}


def _places(rounds: Sequence[dict[str, Any]], by: str) -> dict[int, float]:
    numbers = [entry["round"] for entry in rounds]
    moved = accumulate(entry["bytes_down"] + entry["bytes_up"] for entry in rounds)
    return dict(zip(numbers, moved if by == "bytes" else numbers, strict=True))
