"""Partitions as pictures: bubbles, a grid of counts, stacked shares, and the spread of labels that are numbers.

A row is a client in every picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbraid.errors import UserError
from fedbraid.report.grids import MOST_CLASSES, colour_key, number_ticks, write_cells
from fedbraid.report.series import Floats, grouped
from fedbraid.report.style import (
    CLASS_COLOURS,
    LIGHT,
    SMALL,
    WIDTH,
    Theme,
    key_above,
    label_axes,
    new_figure,
    ramp,
    readable_on,
    style_axes,
)
from fedbraid.report.words import neighbours, numbered, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CLIENTS = 200
"""The most clients that are drawn; of more, every second, third … one: a row needs a few pixels."""
BUBBLES = 30
"""Up to so many clients and classes are drawn as bubbles, whose areas the eye can compare; more as colours."""
NAMED = 30
"""Up to so many classes have their names at their columns."""
KEY_COLUMNS = 5

Counts = Sequence[Sequence[int]]
"""Training samples, `[clients][classes]`."""


def clients(label_counts: Counts, names: Sequence[str] = (), *, theme: Theme = LIGHT) -> Figure:
    """Draw the number of training samples that each client has of each class, and in all."""
    shown = _shown(label_counts, names, MOST_CLASSES)
    height = _height(len(shown.clients))
    figure, left = _beside_sizes(shown.clients, np.sum(label_counts, axis=1), height + shown.below, theme)
    if max(shown.counts.shape) <= BUBBLES:
        _bubbles(left, shown.counts, height, theme)
    else:
        _as_colours(figure, left, shown.counts, theme)
    _class_axis(left, shown, theme)
    return figure


def counts(label_counts: Counts, names: Sequence[str] = (), *, theme: Theme = LIGHT) -> Figure:
    """The same as a grid: the stronger a colour, the more samples; with numbers where they fit."""
    shown = _shown(label_counts, names, MOST_CLASSES)
    figure = new_figure(_height(len(shown.clients)) + shown.below, theme)
    axes = style_axes(figure.subplots(), theme, frame=False, grid=False)
    levels = _as_colours(figure, axes, shown.counts, theme)
    texts = np.array([[f"{count:.0f}" for count in row] for row in shown.counts])
    letters = max(len(words) for words in texts.flat) + 1
    fits = letters * 0.6 * SMALL * shown.counts.shape[1] < 72 * (WIDTH - 0.7)
    if fits and len(shown.clients) <= BUBBLES:
        write_cells(axes, texts, levels, theme)
    _client_axis(axes, shown.clients, shown.total, theme)
    _class_axis(axes, shown, theme)
    return figure


def shares(label_counts: Counts, names: Sequence[str] = (), *, theme: Theme = LIGHT) -> Figure:
    """Draw the classes' shares of each client's samples: a bar for a client, a colour for a class or for neighbours."""
    shown = _shown(label_counts, names, len(CLASS_COLOURS))
    rows, groups = shown.counts.shape
    parts = 100 * shown.counts / np.maximum(shown.counts.sum(axis=1, keepdims=True), 1)
    ends = np.cumsum(parts, axis=1)
    figure = new_figure(_height(rows) + 0.18 * -(-groups // KEY_COLUMNS), theme)
    axes = style_axes(figure.subplots(), theme, frame=False, grid=False)
    few = rows <= BUBBLES
    drawn = [
        # One outline for a class and all clients: a rectangle for each client would take seconds to draw.
        axes.stairs(
            ends[:, group],
            np.arange(rows + 1),
            baseline=ends[:, group] - parts[:, group],
            orientation="horizontal",
            fill=True,
            facecolor=CLASS_COLOURS[group],
            edgecolor=theme.paper,
            linewidth=0.6 if few else 0.0,
        )
        for group in range(groups)
    ]
    if few:
        axes.hlines(np.arange(rows + 1), 0, 100, color=theme.paper, linewidth=3.0)
    if few and shown.size == 1:
        _number_parts(axes, parts, ends - parts / 2, theme)
    axes.set_xlim(0, 100)
    _client_axis(axes, shown.clients, shown.total, theme)
    label_axes(axes, theme, "share of the client's samples (%)", axes.get_ylabel())
    labels = shown.columns()
    key_above(figure, drawn, labels, theme, 18, min(KEY_COLUMNS, len(labels)), handlelength=1.0, columnspacing=1.2)
    return figure


def label_spread(quantiles: Floats, sizes: NDArray[np.int64], *, theme: Theme = LIGHT) -> Figure:
    """Draw labels that are numbers: each client's lowest, quartiles, median and highest, and its number of samples.

    `quantiles` is [clients, 5].
    """
    kept = _kept(len(sizes))
    figure, left = _beside_sizes(kept, sizes, _height(len(kept)), theme)
    rows = np.arange(len(kept)) + 0.5
    low, first, middle, third, high = quantiles[kept].T
    left.grid(False, axis="y")
    left.hlines(rows, low, high, color=theme.muted, linewidth=0.8)
    left.hlines(rows, first, third, color=theme.palette[0], linewidth=4.0 if len(kept) <= BUBBLES else 1.4)
    left.plot(middle, rows, "o", color=theme.palette[1], markersize=4.0 if len(kept) <= BUBBLES else 1.6)
    label_axes(left, theme, "label: lowest to highest, middle half, median", left.get_ylabel())
    return figure


@dataclass(frozen=True, eq=False)
class _Shown:
    """The part of the counts that a picture has room for: some of the clients, and classes or groups of neighbours."""

    counts: Floats  # [shown clients, groups of classes]
    clients: NDArray[np.int64]  # the numbers of those that are shown
    total: int  # how many there are
    size: int  # how many neighbouring classes are in a group
    classes: int
    names: tuple[str, ...]  # of the classes, or nothing

    @property
    def named(self) -> list[str]:
        """The classes' names, if there are some and room for them."""
        return [shortened(name, 16) for name in self.names] if self.size == 1 and len(self.names) <= NAMED else []

    @property
    def below(self) -> float:
        """The inches that names take that must stand upright."""
        longest = max(map(len, self.named), default=0)
        return 0.09 * longest if longest * self.classes > 60 else 0.0

    def columns(self) -> list[str]:
        """A name for each class, or the range of a group."""
        return numbered(self.names, self.classes) if self.size == 1 else neighbours(self.classes, self.size)


def _shown(label_counts: Counts, names: Sequence[str], most_classes: int) -> _Shown:
    if len({len(row) for row in label_counts}) != 1 or not len(label_counts[0]):
        raise UserError("label counts must be a table of clients by classes with at least one of each")
    table = np.array(label_counts, dtype=np.float64)
    kept = _kept(len(table))
    grid, size = grouped(table[kept], most_classes, axis=1)
    return _Shown(grid, kept, len(table), size, table.shape[1], tuple(names))


def _kept(total: int) -> NDArray[np.int64]:
    """All clients, or every second, third … one."""
    return np.arange(0, total, -(-total // MOST_CLIENTS))


def _height(rows: int) -> float:
    return min(6.4, max(2.2, 1.1 + 0.24 * rows))


def _beside_sizes(
    kept: NDArray[np.int64], sizes: NDArray[np.int64], height: float, theme: Theme
) -> tuple[Figure, Axes]:
    """A figure with bars of the clients' sizes on its right; the axes on its left are free."""
    figure = new_figure(height, theme)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[5, 1])
    style_axes(left, theme, frame=False)
    style_axes(right, theme, frame=False)
    right.barh(np.arange(len(kept)) + 0.5, sizes[kept], height=0.7, color=theme.palette[0], linewidth=0)
    right.grid(False, axis="y")
    right.tick_params(axis="y", labelleft=False)
    _few_amounts(right)
    label_axes(right, theme, "samples", "")
    _client_axis(left, kept, len(sizes), theme)
    return figure, left


def _client_axis(axes: Axes, kept: NDArray[np.int64], total: int, theme: Theme) -> None:
    axes.set_ylim(len(kept), 0)
    number_ticks(axes, "y", len(kept), 1, kept)
    rows = "client" if len(kept) == total else f"client, {len(kept)} of {total:,} shown"
    label_axes(axes, theme, axes.get_xlabel(), rows)


def _class_axis(axes: Axes, shown: _Shown, theme: Theme) -> None:
    columns = shown.counts.shape[1]
    axes.set_xlim(0, columns)
    if shown.named:
        axes.set_xticks(np.arange(columns) + 0.5, shown.named, rotation=90 if shown.below else 0, parse_math=False)
    else:
        number_ticks(axes, "x", columns, shown.size)
    label_axes(
        axes, theme, "class" if shown.size == 1 else f"class, {shown.size} neighbours per column", axes.get_ylabel()
    )


def _bubbles(axes: Axes, table: Floats, height: float, theme: Theme) -> None:
    """Areas in proportion to the counts; the largest just fills its cell."""
    from matplotlib.collections import EllipseCollection

    rows, columns = np.nonzero(table)
    widths = np.sqrt(table[rows, columns] / max(table.max(), 1))
    # In points: the axes are about 4.7 inches wide, and 0.8 inches of the height go to texts.
    cell = min(0.95 * 72 * min(4.7 / table.shape[1], (height - 0.8) / table.shape[0]), 40.0)
    axes.add_collection(
        EllipseCollection(
            widths=cell * widths,
            heights=cell * widths,
            angles=np.zeros(rows.size),
            units="points",
            offsets=np.column_stack([columns + 0.5, rows + 0.5]),
            offset_transform=axes.transData,
            facecolors=theme.palette[0],
            linewidths=0,
        )
    )
    axes.set_title(f"largest bubble: {table.max():,.0f} samples", loc="left", fontsize=SMALL, color=theme.muted, pad=4)


def _as_colours(figure: Figure, axes: Axes, table: Floats, theme: Theme) -> Floats:
    """Cells on the ramp; returns their places on it."""
    from matplotlib.colors import PowerNorm

    # The square root keeps small counts visible beside the large ones that skewed clients hold.
    norm = PowerNorm(0.5, vmin=0, vmax=max(float(table.max()), 1.0))
    mesh = axes.pcolormesh(table, cmap=ramp(theme), norm=norm, edgecolors=theme.paper)
    mesh.set_linewidth(1.0 if max(table.shape) <= BUBBLES else 0.0)
    axes.grid(False)
    colour_key(figure, axes, mesh, "training samples of the class", theme)
    return np.asarray(norm(table), dtype=np.float64)


def _number_parts(axes: Axes, parts: Floats, middles: Floats, theme: Theme) -> None:
    """The class in each part that is wide enough: colours alone are not for every eye."""
    from matplotlib.colors import to_rgba

    for row, group in np.argwhere(parts >= 4):
        axes.text(
            middles[row, group],
            row + 0.5,
            str(group),
            ha="center",
            va="center",
            fontsize=SMALL - 1.5,
            color=readable_on(to_rgba(CLASS_COLOURS[group]), theme),
        )


def _few_amounts(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=2, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
