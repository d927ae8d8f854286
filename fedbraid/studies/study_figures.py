"""Figures of a study: courses of its runs, lines over the columns' numbers, and partition_figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbraid.report import panels as panels_of
from fedbraid.report import partition_figures
from fedbraid.report.lines import METRICS, amounts, whole_numbers
from fedbraid.report.style import LIGHT, NORMAL, Theme, legend, stroke, titled
from fedbraid.report.words import byte_unit, shortened
from fedbraid.studies.bars import PAPERS
from fedbraid.studies.courses import Course, heights
from fedbraid.studies.key_labels import key_words
from fedbraid.studies.picture_data import Asked
from fedbraid.studies.round_series import is_share

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOLLOW: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "none", "markersize": 6.5, "markeredgewidth": 1.0}
"""How the paper's numbers are marked beside our lines."""


MOST_BANDS = 8
"""Lines of a panel that may have bands; more of them would hide each other."""

THIN, TALL = 1.1, 3.6
"""A line among more than these, and the height of their panel."""


def course_words(of: str) -> str:
    """What is followed, with its unit."""
    return METRICS.get(of) or key_words(of) + (" (%)" if is_share(of) else "")


def has_bands(courses: Sequence[Course]) -> bool:
    return len(courses) <= MOST_BANDS and any(course.seeds > 1 for course in courses)


def shown_heights(courses: Sequence[Course]) -> tuple[float, float] | None:
    """Those of what is drawn of them: without bands, the means alone."""
    if has_bands(courses):
        return heights(courses)
    return heights([replace(course, low=course.mean, high=course.mean) for course in courses])


def curves(asked: Asked, *, theme: Theme = LIGHT) -> Figure:
    """A panel for each column, in it a line for each row with a band from its lowest to its highest seed."""
    fullest = max(len(asked.panel(column)) for column in asked.columns)
    figure, panels = panels_of.made(asked.columns, TALL if fullest > MOST_BANDS else 2.5, theme, asked.rows)
    scale = 100.0 if is_share(asked.picture.of) else 1.0
    words, size = _axis(asked.picture.x, list(asked.courses.values()))
    handles: dict[str, Any] = {}
    for column, axes in panels.items():
        banded, crowded = has_bands(asked.panel(column)), len(asked.panel(column)) > MOST_BANDS
        for row in asked.rows:
            course = asked.courses.get((row, column))
            if course is None:
                continue
            look = asked.looks[row]
            x, drawn = course.x / size, stroke(look.colour, course.x.size, theme, look.dashes)
            if crowded:
                drawn["linewidth"] = THIN
            (handles[row],) = axes.plot(x, scale * course.mean, **drawn, zorder=3 + asked.order[row] / len(asked.order))
            if course.seeds > 1 and banded:
                low, high = scale * course.low, scale * course.high
                # Bands of one colour are told apart by their edges.
                edge = {"linewidth": 0.0 if look.dashes is None else 0.6, "linestyle": drawn["linestyle"]}
                axes.fill_between(x, low, high, color=drawn["color"], alpha=0.16, **edge)
        shown = shown_heights(asked.panel(column))
        if shown:
            axes.set_ylim(scale * shown[0], scale * shown[1])
        if asked.picture.x == "round" and not asked.picture.log_x:
            whole_numbers(axes)
        else:
            amounts(axes, logarithmic=asked.picture.log_x)
    panels_of.name_axes(panels, words, course_words(asked.picture.of), theme)
    legend(figure, [handles[row] for row in asked.rows], asked.rows, theme)
    return figure


def line(asked: Asked, *, theme: Theme = LIGHT) -> Figure:
    """Each row's numbers over its columns' x, with their standard deviations; the paper's as hollow marks."""
    columns = sorted(asked.columns, key=lambda column: asked.x[column])
    theirs = any(isfinite(asked.paper((row, column)).mean) for row in asked.rows for column in columns)
    labels = [*asked.rows, *([PAPERS] if theirs else [])]
    figure, panels = panels_of.made([""], 3.5, theme, labels)
    axes = panels[""]
    x = np.array([asked.x[column] for column in columns])
    handles = []
    for row in asked.rows:
        drawn = stroke(asked.looks[row].colour, 1, theme, asked.looks[row].dashes)
        ours, paper = ([of((row, column)) for column in columns] for of in (asked.ours, asked.paper))
        means, spreads = np.array([one.mean for one in ours]), np.array([one.whisker for one in ours])
        handles += axes.plot(x, means, **drawn, zorder=3)
        axes.errorbar(x, means, spreads, fmt="none", ecolor=drawn["color"], elinewidth=1.0, capsize=2.5, zorder=2)
        axes.plot(x, [one.mean for one in paper], **drawn | HOLLOW | {"markeredgecolor": drawn["color"]}, zorder=2)
    if asked.picture.log_x:
        axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks(x, [f"{value:g}" for value in x])
    titled(axes, theme, "" if asked.picture.x == "round" else asked.picture.x, fill(shortened(asked.label, 80), 42))
    if theirs:
        handles += axes.plot([], [], marker="o", **HOLLOW, markeredgecolor=theme.muted)
    legend(figure, handles, labels, theme)
    return figure


def split(label_counts: partition_figures.Counts, column: str, *, theme: Theme = LIGHT) -> Figure:
    """Who holds what in a column."""
    figure = partition_figures.clients(label_counts, theme=theme)
    name = figure.suptitle(shortened(column, 80), x=0.01, ha="left", fontsize=NORMAL, color=theme.ink)
    name.set_parse_math(False)
    return figure


def _axis(by: str, courses: Sequence[Course]) -> tuple[str, float]:
    """The name of a course's axis, and the size of its unit."""
    if by == "bytes":
        unit, size = byte_unit(max(float(course.x[-1]) for course in courses))
        return f"data moved so far, down and up, all clients ({unit})", size
    return {"seconds": "seconds so far", "aggregations": "aggregations so far"}.get(by, by), 1.0
