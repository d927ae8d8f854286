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
        scores = [course for run in runs if (course := _scores(run.rounds, metric))]
        places = [_places(run.rounds, by) for run in runs if _scores(run.rounds, metric)]
        found[label] = curve(scores, places)
    return {label: one for label, one in found.items() if one is not None}


def class_scores(records: Sequence[RunRecord]) -> tuple[list[str], Floats]:
    """The methods and their final accuracy per class, `[methods][classes]`, mean over seeds; NaN where unknown."""
    found = {
        label: last
        for label, runs in by_label(records).items()
        if (last := [scores for run in runs if (scores := _last_class_scores(run)) is not None])
    }
    width = max((scores.size for group in found.values() for scores in group), default=0)
    rows = [_known_mean(np.stack([_widened(scores, width) for scores in group])) for group in found.values()]
    return list(found), np.stack(rows) if rows else np.empty((0, 0))


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


def _last_class_scores(run: RunRecord) -> Floats | None:
    measured = [entry["per_class"] for entry in run.rounds if entry.get("per_class")]
    # A class without a test sample has no accuracy: None or NaN, both become NaN here.
    return np.array(measured[-1], dtype=np.float64) if measured else None


def _widened(values: Floats, width: int) -> Floats:
    return np.pad(values, (0, width - values.size), constant_values=np.nan)


def _known_mean(rows: Floats) -> Floats:
    """Mean over the first axis without the NaNs; NaN where there is nothing else."""
    known = ~np.isnan(rows)
    counts = known.sum(axis=0)
    sums = np.where(known, rows, 0).sum(axis=0)
    means: Floats = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return means
