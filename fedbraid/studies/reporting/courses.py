"""How a cell's runs went, over rounds or over what they cost: the mean of its seeds, and the lowest and highest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from fedbraid.errors import unknown
from fedbraid.report.series import Floats
from fedbraid.studies.metrics import aggregations, course
from fedbraid.studies.records import Record


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
