"""Figures of a study: courses of its runs, lines over the columns' numbers, and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, isfinite
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbraid.report.lines import METRICS, amounts, whole_numbers
from fedbraid.report.style import LIGHT, NORMAL, SMALL, Theme, blank, dressed, legend, legend_height, stroke, titled
from fedbraid.report.words import byte_unit, shortened
from fedbraid.studies.metrics import is_share
from fedbraid.studies.reporting.asked import Asked
from fedbraid.studies.reporting.courses import Course, heights
from fedbraid.studies.reporting.words import number, pattern

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HOLLOW: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "none", "markersize": 6.5, "markeredgewidth": 1.0}
"""How the paper's numbers are marked beside our lines."""


def curves(asked: Asked, *, theme: Theme = LIGHT) -> Figure:
    """A panel for each column, in it a line for each row with a band from its lowest to its highest seed."""
    figure, panels = _panels(asked.columns, 2.5, theme, asked.rows)
    scale = 100.0 if is_share(asked.picture.of) else 1.0
    words, size = _axis(asked.picture.x, list(asked.courses.values()))
    handles: dict[str, Any] = {}
    for column, axes in panels.items():
        for row in asked.rows:
            course = asked.courses.get((row, column))
            if course is None:
                continue
            x, drawn = course.x / size, stroke(asked.order[row], course.x.size, theme)
            (handles[row],) = axes.plot(x, scale * course.mean, **drawn, zorder=3 + asked.order[row] / len(asked.order))
            if course.seeds > 1:
                low, high = scale * course.low, scale * course.high
                axes.fill_between(x, low, high, color=drawn["color"], alpha=0.16, linewidth=0)
        shown = heights(asked.panel(column))
        if shown:
            axes.set_ylim(scale * shown[0], scale * shown[1])
        if asked.picture.x == "round" and not asked.picture.log_x:
            whole_numbers(axes)
        else:
            amounts(axes, logarithmic=asked.picture.log_x)
    _name_axes(panels, words, METRICS.get(asked.picture.of, asked.picture.of), theme)
    legend(figure, [handles[row] for row in asked.rows], asked.rows, theme)
    return figure


def line(asked: Asked, *, theme: Theme = LIGHT) -> Figure:
    """Each row's numbers over its columns' x, with their standard deviations; the paper's as hollow marks."""
    figure, panels = _panels([""], 3.5, theme, asked.rows)
    axes = panels[""]
    columns = sorted(asked.columns, key=lambda column: asked.x[column])
    x = np.array([asked.x[column] for column in columns])
    handles = []
    for row in asked.rows:
        drawn = stroke(asked.order[row], 1, theme)
        ours, paper = ([of((row, column)) for column in columns] for of in (asked.ours, asked.paper))
        means, spreads = np.array([one.mean for one in ours]), np.array([one.std or 0.0 for one in ours])
        handles += axes.plot(x, means, **drawn, zorder=3)
        axes.errorbar(x, means, spreads, fmt="none", ecolor=drawn["color"], elinewidth=1.0, capsize=2.5, zorder=2)
        axes.plot(x, [one.mean for one in paper], **drawn | HOLLOW | {"markeredgecolor": drawn["color"]}, zorder=2)
    if asked.picture.log_x:
        axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks(x, [f"{value:g}" for value in x])
    titled(axes, theme, "" if asked.picture.x == "round" else asked.picture.x, shortened(asked.label, 60))
    legend(figure, handles, asked.rows, theme)
    return figure


def bars(asked: Asked, *, theme: Theme = LIGHT) -> Figure:
    """A panel for each column, in it a bar for each row; the paper's number as an upright mark."""
    figure, panels = _panels(asked.columns, 0.5 + 0.24 * len(asked.rows), theme)
    y = np.arange(len(asked.rows))
    colours = [theme.palette[asked.order[row] % len(theme.palette)] for row in asked.rows]
    for place, (column, axes) in enumerate(panels.items()):
        ours, paper = ([of((row, column)) for row in asked.rows] for of in (asked.ours, asked.paper))
        means, spreads = np.array([one.mean for one in ours]), np.array([one.std or 0.0 for one in ours])
        theirs = np.array([one.mean for one in paper])
        axes.barh(y, means, height=0.72, color=colours, zorder=2)
        axes.errorbar(means, y, xerr=spreads, fmt="none", ecolor=theme.ink, elinewidth=1.0, capsize=2.0, zorder=3)
        axes.plot(theirs, y, linestyle="none", marker="|", markersize=11, markeredgewidth=2, color=theme.ink, zorder=4)
        ends = np.fmax(np.fmax(means + spreads, theirs), 0.0)
        for row, (mean, end) in enumerate(zip(means.tolist(), ends.tolist(), strict=True)):
            if isfinite(mean):
                share = asked.entries[asked.rows[row], column].share
                words = number(mean, pattern(mean, asked.digits, share=share))
                _beside(axes, words, end, row, theme)
        axes.margins(x=0.2)
        axes.set_ylim(len(y) - 0.5, -0.5)  # from above, and with room for a bar that is missing
        axes.grid(False, axis="y")
        named = place % _across(len(panels)) == 0
        axes.set_yticks(y, [shortened(row, 28) if named else "" for row in asked.rows], parse_math=False)
    several = len({asked.named(column) for column in asked.columns}) > 1
    for place, (column, axes) in enumerate(panels.items()):
        below = several or place + _across(len(panels)) >= len(panels)
        titled(axes, theme, fill(asked.named(column), 72 // _across(len(panels))) if below else "", "")
    return figure


def _beside(axes: Axes, words: str, x: float, y: float, theme: Theme) -> None:
    right_of_it: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
    axes.annotate(words, (x, y), fontsize=SMALL, color=theme.ink, **right_of_it)


def _axis(by: str, courses: Sequence[Course]) -> tuple[str, float]:
    """The name of a course's axis, and the size of its unit."""
    if by == "bytes":
        unit, size = byte_unit(max(float(course.x[-1]) for course in courses))
        return f"data moved so far, down and up, all clients ({unit})", size
    return {"seconds": "seconds so far", "aggregations": "aggregations so far"}.get(by, by), 1.0


def _across(panels: int) -> int:
    return 1 if panels == 1 else 2


def _panels(
    names: Sequence[str], each: float, theme: Theme, labels: Sequence[str] = ()
) -> tuple[Figure, dict[str, Axes]]:
    """A panel for each name, two side by side if there are several; `each` is the height of one."""
    lines = ceil(len(names) / _across(len(names)))
    room = 0.45 + (legend_height(labels) if labels else 0.0)
    figure = blank(lines * (each if len(names) > 1 else max(each, 1.2)) + room, theme)
    grid = figure.subplots(lines, _across(len(names)), squeeze=False).ravel()
    for spare in grid[len(names) :]:
        spare.remove()
    panels = {name: dressed(axes, theme) for name, axes in zip(names, grid, strict=False)}
    for name, axes in panels.items():
        axes.set_title(shortened(name, 44), loc="left", fontsize=NORMAL, color=theme.ink, pad=4, parse_math=False)
    return figure, panels


def _name_axes(panels: Mapping[str, Axes], x: str, y: str, theme: Theme) -> None:
    """At the outer edges only."""
    across = _across(len(panels))
    for place, axes in enumerate(panels.values()):
        titled(axes, theme, x if place + across >= len(panels) else "", y if place % across == 0 else "")
