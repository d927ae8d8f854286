"""Lines over the values of a setting, with whiskers, and with other numbers beside them as hollow marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbraid.report import panels as panels_of
from fedbraid.report.looks import Look
from fedbraid.report.style import LIGHT, Theme, label_axes, legend, stroke
from fedbraid.report.words import shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = Mapping[float, tuple[float, float]]
"""Mean and standard deviation by value; NaN where there is no mean, or no spread, and nothing is drawn."""
HOLLOW: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "none", "markersize": 6.5, "markeredgewidth": 1.0}
"""The marks of numbers beside a line."""


def value_lines(
    lines: Mapping[str, Points],
    looks: Mapping[str, Look],
    x: str,
    y: str,
    *,
    beside: Mapping[str, Points] | None = None,
    beside_label: str = "",
    theme: Theme = LIGHT,
) -> Figure:
    """A line for each label; `beside` has other numbers for the same labels, which the legend calls `beside_label`."""
    labels = [*lines, *([beside_label] if beside else [])]
    figure, panels = panels_of.make_panels([""], 3.5, theme, labels)
    axes = panels[""]
    handles = []
    for label, points in lines.items():
        drawn = stroke(looks[label].colour, 1, theme, looks[label].dashes)
        handles += axes.plot([*points], [mean for mean, _ in points.values()], **drawn, zorder=3)
        whiskers = {"fmt": "none", "ecolor": drawn["color"], "elinewidth": 1.0, "capsize": 2.5}
        axes.errorbar([*points], *np.array([*points.values()]).T, **whiskers, zorder=2)
        if beside and label in beside:
            hollow = drawn | HOLLOW | {"markeredgecolor": drawn["color"]}
            axes.plot([*beside[label]], [mean for mean, _ in beside[label].values()], **hollow, zorder=2)
    label_axes(axes, theme, x, fill(shortened(y, 80), 42))
    if beside:
        handles += axes.plot([], [], marker="o", **HOLLOW, markeredgecolor=theme.muted)
    legend(figure, handles, labels, theme)
    return figure


def tick_values(figure: Figure, values: Sequence[float], most: int = 9, *, log: bool | None = None) -> None:
    """Mark the values themselves, at most so many; `log` is chosen by the values unless it is given."""
    (axes,) = figure.axes
    values = sorted(values)
    positive = [value for value in values if value > 0]
    spans = bool(positive) and values[0] >= 0 and positive[-1] > 8 * positive[0]
    if spans if log is None else log:
        if len(positive) == len(values):
            axes.set_xscale("log")
        else:  # 0 is among them
            axes.set_xscale("symlog", linthresh=positive[0])
    shown = values[:: -(-len(values) // most)]
    axes.set_xticks(shown, [f"{value:g}" for value in shown], minor=False)
    axes.minorticks_off()
