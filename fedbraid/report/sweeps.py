"""The last score against a number that runs of one method were given different values of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any

from fedbraid.report.lines import METRICS, amounts, bounded, line_figure, scale_of
from fedbraid.report.records import RunRecord
from fedbraid.report.style import LIGHT, Theme, legend, stroke, titled
from fedbraid.report.summarise import summarise
from fedbraid.variants import named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWEST = 3
"""Values that make a line."""


@dataclass(frozen=True)
class Sweep:
    """One setting, and for each method (with its other varied settings) the scores of all seeds at each value."""

    key: str
    lines: dict[str, dict[float, list[float]]]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]


def sweeps(records: Sequence[RunRecord]) -> list[Sweep]:
    """The settings of which some method had three values or more."""
    settings = [_numbers(record.settings) for record in records]
    methods = [str(record.settings.get("method", record.label)) for record in records]
    own: dict[str, list[Mapping[str, float]]] = {}
    for method, numbers in zip(methods, settings, strict=True):
        own.setdefault(method, []).append(numbers)
    differing = {method: _differing(found) for method, found in own.items()}
    keys = dict.fromkeys(key for found in differing.values() for key in found)
    made = []
    for key in keys:
        lines: dict[str, dict[float, list[float]]] = {}
        for record, method, numbers in zip(records, methods, settings, strict=True):
            last = summarise(record.rounds)["last"]
            if key in differing[method] and last is not None:
                others = {other: f"{numbers[other]:g}" for other in differing[method] if other != key}
                lines.setdefault(named(method, others), {}).setdefault(numbers[key], []).append(last)
        lines = {label: dict(sorted(points.items())) for label, points in lines.items() if len(points) >= FEWEST}
        if lines:
            made.append(Sweep(key, lines))
    return made


def sweep(drawn: Sweep, metric: str, *, theme: Theme = LIGHT) -> Figure:
    """A line per method through the means over seeds, with a band from the lowest to the highest seed."""
    figure, axes = line_figure(list(drawn.lines), theme)
    scale, values = scale_of(metric), [x for points in drawn.lines.values() for x in points]
    for index, points in enumerate(drawn.lines.values()):
        at = [x for x, scores in points.items() if all(map(isfinite, scores))]  # one that diverged is a gap
        scores = [points[x] for x in at]
        shown = stroke(index, len(at), theme) | {"markevery": 1}
        axes.plot(at, [scale * sum(some) / len(some) for some in scores], **shown)
        if any(len(some) > 1 for some in scores):
            low, high = ([scale * end(some) for some in scores] for end in (min, max))
            axes.fill_between(at, low, high, color=shown["color"], alpha=0.16, linewidth=0)
    amounts(axes, logarithmic=min(values) > 0 and max(values) > 8 * min(values))
    bounded(axes, metric)
    titled(axes, theme, drawn.key, f"{METRICS[metric]}, last round")
    legend(figure, axes.get_lines()[: len(drawn.lines)], list(drawn.lines), theme)
    return figure


def _numbers(settings: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The settings that are numbers, by dotted key."""
    found: dict[str, float] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and not isnan(value):
            found[f"{prefix}{key}"] = float(value)
    return {key: value for key, value in found.items() if key.rpartition(".")[2] != "seed"}


def _differing(runs: Sequence[Mapping[str, float]]) -> list[str]:
    shared = [key for key in runs[0] if all(key in run for run in runs)]
    return [key for key in shared if len({run[key] for run in runs}) > 1]
