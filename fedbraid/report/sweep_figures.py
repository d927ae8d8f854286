"""The last score against a number that runs of one method were given different values of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from fedbraid.config.schema import flat, named, short
from fedbraid.core.metrics import is_share
from fedbraid.report.curves import METRICS, bounded, scale_of
from fedbraid.report.looks import Look
from fedbraid.report.run_groups import RunRecord
from fedbraid.report.style import LIGHT, Theme
from fedbraid.report.summaries import summarise
from fedbraid.report.value_lines import tick_values, value_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWEST = 3
"""Values that make a line."""


@dataclass(frozen=True)
class Sweep:
    """One setting, and for each method (with its other varied settings) the scores of all seeds at each value."""

    key: str
    name: str  # the key, or its end where no other ends alike
    lines: dict[str, dict[float, list[float]]]


def sweeps(records: Sequence[RunRecord]) -> list[Sweep]:
    """The varied settings of which some method had three numbers or more."""
    varied = [_varied(record.settings) for record in records]
    ends = short(key for settings in varied for key in settings)
    made = []
    for key in ends:
        lines: dict[str, dict[float, list[float]]] = {}
        for record, settings in zip(records, varied, strict=True):
            value, last = settings.get(key), summarise(record.rounds)["last"]
            if isinstance(value, int | float) and not isinstance(value, bool) and last is not None:
                others = {other: setting for other, setting in settings.items() if other != key}
                label = named(str(record.settings["method"]), others, among=ends)
                lines.setdefault(label, {}).setdefault(float(value), []).append(last)
        lines = {label: dict(sorted(points.items())) for label, points in lines.items() if len(points) >= FEWEST}
        if lines:
            made.append(Sweep(key, ends[key], lines))
    return made


def sweep(drawn: Sweep, metric: str, *, theme: Theme = LIGHT) -> Figure:
    """A line per method through the means over seeds, with whiskers of one standard deviation."""
    scale = scale_of(metric)
    lines = {label: {x: _point(some, scale) for x, some in points.items()} for label, points in drawn.lines.items()}
    looks = {label: Look(number) for number, label in enumerate(lines)}
    figure = value_lines(lines, looks, drawn.key, f"{METRICS[metric]}, last round", theme=theme)
    tick_values(figure, [*{x for points in lines.values() for x in points}])
    if is_share(metric):
        bounded(figure.axes[0])
    return figure


def _point(scores: Sequence[float], scale: float) -> tuple[float, float]:
    """Mean and standard deviation; a diverged run leaves a gap."""
    if not isfinite(sum(scores)):
        return nan, nan
    return scale * fmean(scores), scale * stdev(scores) if len(scores) > 1 else nan


def _varied(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that distinguish a run, with their values."""
    values = flat(settings)
    return {key: values[key] for key in settings.get("varied", ()) if key in values}
