"""Courses of a cell's runs, over rounds or over what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from fedbraid.errors import unknown
from fedbraid.report.series import Curve, curve
from fedbraid.studies.round_series import aggregations, course
from fedbraid.studies.run_records import Record


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


def course_of(records: Sequence[Record], of: str, by: str = "round") -> Curve | None:
    """The course of `of`, at the rounds that every seed has."""
    if by not in AXES:
        raise unknown("axis of a course", by, AXES)
    found = [(record, values) for record in records if (values := dict(course(record, of)))]
    spent = [dict(zip(record.rounds, AXES[by](record), strict=True)) for record, _ in found]
    return curve([values for _, values in found], spent)
