"""How a cell's runs went, over rounds or over what they cost: the mean of its seeds, and the lowest and highest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from fedbraid.errors import unknown
from fedbraid.report.series import Floats
from fedbraid.studies.round_series import aggregations, course
from fedbraid.studies.run_records import Record


@dataclass(frozen=True, eq=False)
class Course:
    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    seeds: int


def _moved(record: Record) -> Sequence[float]:
    down, up = record.series["bytes_down"], record.series["bytes_up"]
    return list(accumulate(a + b for a, b in zip(down, up, strict=True)))


AXES: dict[str, Callable[[Record], Sequence[float]]] = {
    "round": lambda record: record.rounds,
    "bytes": _moved,
    "seconds": lambda record: list(accumulate(record.series["seconds"])),
    "aggregations": aggregations,
}
"""What a course may go by: its value after each round."""


EARLY, ROOM = 10, 0.05
"""The first of so many parts of a course is early; the share of a panel's height that is left free at its ends."""


def heights(courses: Sequence[Course]) -> tuple[float, float] | None:
    """From where to where a panel must reach to show what these differ in once they have begun.

    None where that is all there is: nothing of the first tenth of their rounds lies below the rest.
    """
    lowest = _finite([course.low for course in courses])
    later = _finite([course.low[course.low.size // EARLY :] for course in courses])
    highest = _finite([course.high for course in courses])
    if not later.size or not highest.size:
        return None
    bottom, top, least = float(later.min()), float(highest.max()), float(lowest.min())
    room = ROOM * ((top - bottom) or (top - least))
    return (bottom - room, top + room) if least < bottom - room else None


def _finite(parts: Sequence[Floats]) -> Floats:
    together: Floats = np.concatenate([np.empty(0), *parts])
    return together[np.isfinite(together)]


def course_of(records: Sequence[Record], of: str, by: str = "round") -> Course | None:
    """The course of `of`, at the rounds that every seed has: a mean over changing seeds would jump by itself."""
    if by not in AXES:
        raise unknown("axis of a course", by, AXES)
    found = [(record, values) for record in records if (values := dict(course(record, of)))]
    common = sorted(set.intersection(*[set(values) for _, values in found])) if found else []
    if not common:
        return None
    heights = np.array([[values[number] for number in common] for _, values in found], dtype=np.float64)
    spent = [dict(zip(record.rounds, AXES[by](record), strict=True)) for record, _ in found]
    x = np.array([[after[number] for number in common] for after in spent], dtype=np.float64)
    return Course(x.mean(axis=0), heights.mean(axis=0), heights.min(axis=0), heights.max(axis=0), len(found))
