"""Figures of one panel or of several, two side by side, under one legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

from fedbraid.report.style import NORMAL, Theme, label_axes, legend_height, new_figure, style_axes
from fedbraid.report.words import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HIGHEST_LEGEND = 10.5


def across(panels: int) -> int:
    return 1 if panels == 1 else 2


def make_panels(
    names: Sequence[str], each: float, theme: Theme, labels: Sequence[str] = ()
) -> tuple[Figure, dict[str, Axes]]:
    """A panel for each name; `each` is the height of one, and `labels` are the legend's."""
    lines = ceil(len(names) / across(len(names)))
    room = 0.45 + (min(legend_height(labels), HIGHEST_LEGEND) if labels else 0.0)
    figure = new_figure(lines * (each if len(names) > 1 else max(each, 1.2)) + room, theme)
    grid = figure.subplots(lines, across(len(names)), squeeze=False).ravel()
    for spare in grid[len(names) :]:
        spare.remove()
    panels = {name: style_axes(axes, theme) for name, axes in zip(names, grid, strict=False)}
    for name, axes in panels.items():
        axes.set_title(shortened(name, 44), loc="left", fontsize=NORMAL, color=theme.ink, pad=4, parse_math=False)
    return figure, panels


def is_lowest(place: int, panels: int) -> bool:
    return place + across(panels) >= panels


def name_axes(panels: Mapping[str, Axes], x: str, y: str, theme: Theme) -> None:
    """At the outer edges only."""
    for place, axes in enumerate(panels.values()):
        below, left = is_lowest(place, len(panels)), place % across(len(panels)) == 0
        label_axes(axes, theme, x if below else "", y if left else "")
