"""Bars with whiskers and their numbers, and with other numbers marked beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, nan
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbraid.report import panels as panels_of
from fedbraid.report.looks import Look
from fedbraid.report.style import LIGHT, NORMAL, SMALL, Theme, in_any_script, label_axes, legend, readable_on
from fedbraid.report.words import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME, NAME_LINES = 26, 3
"""Characters in a line of a row's name, and lines of it."""
PER_CHARACTER = 0.62
"""Of a character's width to its height, on average; a little more than that of figures and small letters."""
UPRIGHT: dict[str, Any] = {"linestyle": "none", "marker": "|", "markersize": 11, "markeredgewidth": 2}


@dataclass(frozen=True)
class Bar:
    """A number; NaN is not drawn."""

    mean: float
    std: float = nan
    beside: float = nan  # another number for the same thing
    text: str = ""  # the number as it is written

    @property
    def reach(self) -> float:
        """The length of the whisker, from the bar's end."""
        return self.std if isfinite(self.std) else 0.0


@dataclass(frozen=True)
class BarPanels:
    """The content of a figure of bars: a bar for each row in each panel. Rows look the same in all panels."""

    panels: Mapping[str, Mapping[str, Bar]]
    axes: Mapping[str, str]  # what the numbers of each panel are
    looks: Mapping[str, Look]
    beside: str  # what the legend calls the other numbers


def bars(shown: BarPanels, *, theme: Theme = LIGHT) -> Figure:
    """A panel for each title, in it a bar for each row; the other number as an upright mark."""
    rows = [*next(iter(shown.panels.values()))]
    names = ["\n".join(wrap(shortened(row, NAME * NAME_LINES - NAME // 2), NAME)[:NAME_LINES]) for row in rows]
    tallest = max(name.count("\n") + 1 for name in names)
    below = max(len(words) // 30 for words in shown.axes.values())  # lines of an axis' name beyond the first
    each = 0.5 + len(names) * (0.1 + 0.15 * tallest) + 0.16 * below
    marked = any(isfinite(bar.beside) for found in shown.panels.values() for bar in found.values())
    figure, panels = panels_of.make_panels([*shown.panels], each, theme, [shown.beside] if marked else [])
    for place, (title, axes) in enumerate(panels.items()):
        mark = _draw(axes, shown, title, theme)
        axes.set_ylim(len(names) - 0.5, -0.5)  # from above, and with room for a bar that is missing
        axes.grid(False, axis="y")
        first = place % panels_of.across(len(panels)) == 0
        axes.set_yticks(range(len(names)), names if first else [""] * len(names), parse_math=False)
        _few_ticks(axes)
    if marked:
        legend(figure, [mark], [shown.beside], theme)
    with in_any_script():
        figure.draw_without_rendering()  # from here on it is known how wide panels are
    several = len({*shown.axes.values()}) > 1
    for place, (title, axes) in enumerate(panels.items()):
        wide = 72 * axes.get_window_extent().width / figure.dpi
        if several or panels_of.is_lowest(place, len(panels)):
            label_axes(axes, theme, fill(shown.axes[title], max(12, int(wide / (PER_CHARACTER * NORMAL)))), "")
        _write_numbers(axes, shown, title, wide, theme)
    return figure


def _draw(axes: Axes, shown: BarPanels, title: str, theme: Theme) -> Any:
    """The bars of a panel; returns the marks of the other numbers."""
    found = shown.panels[title]
    y = np.arange(len(found))
    means, spreads, beside = np.array([(bar.mean, bar.std, bar.beside) for bar in found.values()]).T
    axes.barh(y, means, height=0.72, color=[_colour(shown, row, theme) for row in found], zorder=2)
    axes.errorbar(means, y, xerr=spreads, fmt="none", ecolor=theme.ink, elinewidth=1.0, capsize=2.0, zorder=3)
    return axes.plot(beside, y, **UPRIGHT, color=theme.ink, zorder=4)[0]


def _colour(shown: BarPanels, row: str, theme: Theme) -> str:
    return theme.palette[shown.looks[row].colour % len(theme.palette)]


def _few_ticks(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _write_numbers(axes: Axes, shown: BarPanels, title: str, wide: float, theme: Theme) -> None:
    """The numbers: within their bars where these are long enough, or else behind them and what is marked there.

    `wide` is the panel's width in points; the axis grows until the numbers behind bars fit it.
    """
    from matplotlib.colors import to_rgba

    low, high = axes.get_xlim()
    found = {place: (row, bar) for place, (row, bar) in enumerate(shown.panels[title].items()) if isfinite(bar.mean)}
    needed = {place: PER_CHARACTER * SMALL * len(bar.text) + 8 for place, (_, bar) in found.items()}
    ends = {
        k: max(bar.mean + bar.reach, 0.0, bar.beside if isfinite(bar.beside) else 0.0) for k, (_, bar) in found.items()
    }
    free = {k: (bar.mean - bar.reach) / high * wide if high > 0 else 0.0 for k, (_, bar) in found.items()}
    outside = [ends[k] * wide / max(wide - needed[k], wide / 4) for k in found if free[k] <= needed[k]]
    axes.set_xlim(low, max([high, *outside]))
    for place, (row, bar) in found.items():
        within = free[place] > needed[place]
        colour = readable_on(to_rgba(_colour(shown, row, theme)), theme) if within else theme.ink
        right_of_it: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        at = (0.0 if within else ends[place], place)
        text = axes.annotate(bar.text, at, fontsize=SMALL, color=colour, zorder=5, **right_of_it)
        text.set_in_layout(False)  # there is room for it within the panel
