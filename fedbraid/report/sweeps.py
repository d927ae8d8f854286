"""The last score against a number that runs of one method were given different values of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from fedbraid.config.schema import flat, named, short
from fedbraid.report.lines import METRICS, bounded, line_figure, scale_of
from fedbraid.report.run_groups import RunRecord
from fedbraid.report.style import LIGHT, Theme, legend, stroke, titled
from fedbraid.report.summaries import summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST = 3
"""Values that make a line."""
MOST = 9
"""Values that an axis has room for."""


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
    """A line per method through the means over seeds, with a band from the lowest to the highest seed."""
    figure, axes = line_figure(list(drawn.lines), theme)
    scale = scale_of(metric)
    for index, points in enumerate(drawn.lines.values()):
        scores = list(points.values())
        shown = stroke(index, len(points), theme) | {"markevery": 1}
        axes.plot(list(points), [scale * _mean(some) for some in scores], **shown)
        if any(len(some) > 1 for some in scores):
            low, high = ([scale * (end(some) if isfinite(sum(some)) else nan) for some in scores] for end in (min, max))
            axes.fill_between(list(points), low, high, color=shown["color"], alpha=0.16, linewidth=0)
    _values_tried(axes, sorted({x for points in drawn.lines.values() for x in points}))
    bounded(axes, metric)
    titled(axes, theme, drawn.key, f"{METRICS[metric]}, last round")
    legend(figure, axes.get_lines()[: len(drawn.lines)], list(drawn.lines), theme)
    return figure


def _values_tried(axes: Axes, values: Sequence[float]) -> None:
    """The axis has the values that were tried, as many as there is room for."""
    positive = [x for x in values if x > 0]
    if values[0] >= 0 and positive and positive[-1] > 8 * positive[0]:
        if len(positive) == len(values):
            axes.set_xscale("log")
        else:  # 0 is among them
            axes.set_xscale("symlog", linthresh=positive[0])
    shown = values[:: -(-len(values) // MOST)]
    axes.set_xticks(shown, [f"{x:g}" for x in shown], minor=False)
    axes.minorticks_off()


def _varied(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run is told apart by, with their values."""
    values = flat(settings)
    return {key: values[key] for key in settings.get("varied", ()) if key in values}


def _mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores) if isfinite(sum(scores)) else nan
