"""Bars of a table's numbers, with the paper's marked."""

from __future__ import annotations

from math import isfinite
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbraid.report import panels as panels_of
from fedbraid.report.style import LIGHT, NORMAL, SMALL, Theme, in_any_script, legend, readable_on, titled
from fedbraid.report.words import number, pattern, shortened
from fedbraid.studies.picture_data import Asked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME, NAME_LINES = 26, 3
"""Letters on a line of a row's name, and lines of it."""
DIGITS = 2
"""Behind the point, at the most: the table has the others."""
PER_LETTER = 0.62
"""Of a letter's width to its height, on average; a little more than that of figures and small letters."""
PAPERS = "the paper's number"
UPRIGHT: dict[str, Any] = {"linestyle": "none", "marker": "|", "markersize": 11, "markeredgewidth": 2}


def bars(asked: Asked, *, theme: Theme = LIGHT) -> Figure:
    """A panel for each column, in it a bar for each row; the paper's number as an upright mark."""
    names = [wrapped_name(row) for row in asked.rows]
    tallest = max(name.count("\n") + 1 for name in names)
    below = max(len(asked.named(column)) // 30 for column in asked.columns)  # lines of an axis' name beyond the first
    each = 0.5 + len(names) * (0.1 + 0.15 * tallest) + 0.16 * below
    theirs = any(isfinite(asked.paper((row, column)).mean) for row in asked.rows for column in asked.columns)
    figure, panels = panels_of.made(asked.columns, each, theme, [PAPERS] if theirs else [])
    for place, (column, axes) in enumerate(panels.items()):
        mark = _drawn(axes, asked, column, theme)
        axes.set_ylim(len(names) - 0.5, -0.5)  # from above, and with room for a bar that is missing
        axes.grid(False, axis="y")
        first = place % panels_of.across(len(panels)) == 0
        axes.set_yticks(range(len(names)), names if first else [""] * len(names), parse_math=False)
        _few_ticks(axes)
    if theirs:
        legend(figure, [mark], [PAPERS], theme)
    with in_any_script():
        figure.draw_without_rendering()  # from here on it is known how wide panels are
    several = len({asked.named(column) for column in asked.columns}) > 1
    for place, (column, axes) in enumerate(panels.items()):
        wide = 72 * axes.get_window_extent().width / figure.dpi
        if several or panels_of.is_lowest(place, len(panels)):
            titled(axes, theme, fill(asked.named(column), max(12, int(wide / (PER_LETTER * NORMAL)))), "")
        _number(axes, asked, column, wide, theme)
    return figure


def wrapped_name(row: str) -> str:
    return "\n".join(wrap(shortened(row, NAME * NAME_LINES - NAME // 2), NAME)[:NAME_LINES])


def _drawn(axes: Axes, asked: Asked, column: str, theme: Theme) -> Any:
    """The bars of a panel; the marks of the paper's numbers."""
    y = np.arange(len(asked.rows))
    ours, paper = ([of((row, column)) for row in asked.rows] for of in (asked.ours, asked.paper))
    means, spreads = np.array([one.mean for one in ours]), np.array([one.whisker for one in ours])
    axes.barh(y, means, height=0.72, color=[_colour(asked, row, theme) for row in asked.rows], zorder=2)
    axes.errorbar(means, y, xerr=spreads, fmt="none", ecolor=theme.ink, elinewidth=1.0, capsize=2.0, zorder=3)
    return axes.plot([one.mean for one in paper], y, **UPRIGHT, color=theme.ink, zorder=4)[0]


def _colour(asked: Asked, row: str, theme: Theme) -> str:
    return theme.palette[asked.looks[row].colour % len(theme.palette)]


def _few_ticks(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _number(axes: Axes, asked: Asked, column: str, wide: float, theme: Theme) -> None:
    """Our numbers: within their bars where these are long enough, or else behind them and what is marked there."""
    low, high = axes.get_xlim()
    texts: dict[int, tuple[str, float, float]] = {}  # by row: the number, where its bar ends, where all ends
    for place, row in enumerate(asked.rows):
        ours, theirs = asked.ours((row, column)), asked.paper((row, column)).mean
        if isfinite(ours.mean):
            how = pattern(ours.mean, min(asked.digits, DIGITS), share=asked.entries[row, column].share)
            reach = ours.mean + (ours.std or 0.0)
            end = max(reach, 0.0, theirs if isfinite(theirs) else 0.0)
            texts[place] = number(ours.mean, how), ours.mean - (ours.std or 0.0), end
    needed = {place: PER_LETTER * SMALL * len(words) + 8 for place, (words, _, _) in texts.items()}
    within = {place for place, (_, bar, _) in texts.items() if (bar / high if high > 0 else 0) * wide > needed[place]}
    outside = [end * wide / max(wide - needed[k], wide / 4) for k, (_, _, end) in texts.items() if k not in within]
    axes.set_xlim(low, max([high, *outside]))
    for place, (words, _, end) in texts.items():
        colour = _on_bar(asked, asked.rows[place], theme) if place in within else theme.ink
        _beside(axes, words, 0.0 if place in within else end, place, colour)


def _on_bar(asked: Asked, row: str, theme: Theme) -> str:
    from matplotlib.colors import to_rgba

    return readable_on(to_rgba(_colour(asked, row, theme)), theme)


def _beside(axes: Axes, words: str, x: float, y: float, colour: str) -> None:
    right_of_it: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
    text = axes.annotate(words, (x, y), fontsize=SMALL, color=colour, zorder=5, **right_of_it)
    text.set_in_layout(False)  # there is room for it within the panel
