"""The numbers behind the pictures: one series per method, one row of class scores per method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbraid.report.run_groups import RunRecord, by_label

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Series:
    """A method's course over rounds: the mean of its seeds, and the lowest and highest of them."""

    label: str
    seeds: int
    rounds: Floats
    mean: Floats
    low: Floats
    high: Floats
    moved: Floats
    """Bytes down and up since the start, mean over seeds."""


def series(records: Sequence[RunRecord], metric: str) -> list[Series]:
    """One series per method that has a value; methods in the order in which they were listed."""
    drawn = (_of_method(label, runs, metric) for label, runs in by_label(records).items())
    return [item for item in drawn if item is not None]


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


def _of_method(label: str, runs: Sequence[RunRecord], metric: str) -> Series | None:
    courses = [course for run in runs if (course := _course(run.rounds, metric))]
    if not courses:
        return None
    # Only rounds that every seed has: a mean over changing seeds would jump without any learning.
    common = sorted(set.intersection(*[set(course) for course in courses]))
    if not common:
        return None
    values = np.array([[course[number][0] for number in common] for course in courses], dtype=np.float64)
    moved = np.array([[course[number][1] for number in common] for course in courses], dtype=np.float64)
    return Series(
        label=label,
        seeds=len(courses),
        rounds=np.array(common, dtype=np.float64),
        mean=values.mean(axis=0),
        low=values.min(axis=0),
        high=values.max(axis=0),
        moved=moved.mean(axis=0),
    )


def _course(rounds: Sequence[dict[str, Any]], metric: str) -> dict[int, tuple[float, int]]:
    """Round → (score, bytes moved so far), for the rounds that have a score."""
    moved = accumulate(entry["bytes_down"] + entry["bytes_up"] for entry in rounds)
    return {
        entry["round"]: (entry[metric], total)
        for entry, total in zip(rounds, moved, strict=True)
        if entry.get(metric) is not None
    }


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
