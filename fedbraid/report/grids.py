"""Classes as grids: how well each method knows them, and which client holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbraid.errors import UserError
from fedbraid.report.records import RunRecord
from fedbraid.report.series import Floats, class_scores, grouped
from fedbraid.report.style import LIGHT, NORMAL, SMALL, Theme, blank, dressed, ramp, readable_on, said, titled
from fedbraid.report.words import NOTHING, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

MOST_ROWS, MOST_CLASSES = 200, 200
"""More clients, methods or classes than this are thinned out or grouped: a row needs a few pixels."""
BUBBLES = 30
"""Up to so many clients and classes are drawn as bubbles, whose areas the eye can compare; more as colours."""


def per_class(records: Sequence[RunRecord], *, theme: Theme = LIGHT) -> Figure:
    """The final accuracy of every method on every class."""
    labels, scores = class_scores(records)
    if not labels:
        return said(blank(2.0, theme), "no accuracy per class has been measured", theme)
    labels, scores = labels[:MOST_ROWS], 100 * scores[:MOST_ROWS]
    scores, size = _mean_over_neighbours(scores)
    figure = blank(min(16.0, 1.25 + max(0.26 * len(labels), 0.5)), theme)
    axes = dressed(figure.subplots(), theme, frame=False, grid=False)
    axes.set_facecolor(theme.grid)  # shows through where a class has no accuracy, which is not an accuracy of 0
    mesh = axes.pcolormesh(scores, cmap=ramp(theme), vmin=0, vmax=100, edgecolors=theme.paper)
    mesh.set_linewidth(1.0 if scores.shape[1] <= 40 else 0.0)
    _write_cells(axes, scores, theme)
    axes.invert_yaxis()
    crowded = len(labels) > 55
    axes.set_yticks(
        np.arange(len(labels)) + 0.5,
        [shortened(label, 34) for label in labels],
        fontsize=4.0 if crowded else SMALL,
        parse_math=False,
    )
    _number_ticks(axes, "x", scores.shape[1], size)
    titled(axes, theme, "class" if size == 1 else f"class, {size} neighbours per column", "")
    _colour_key(figure, axes, mesh, "accuracy (%)", theme)
    return figure


def clients(label_counts: Sequence[Sequence[int]], *, theme: Theme = LIGHT) -> Figure:
    """Which client holds how many training samples of which class, and how many in all."""
    counts = _count_table(label_counts)
    total = counts.shape[0]
    kept = np.unique(np.linspace(0, total - 1, min(total, MOST_ROWS)).round().astype(int))
    shown, size = grouped(counts[kept], MOST_CLASSES, axis=1)
    height = min(6.4, max(2.2, 1.1 + 0.24 * len(kept)))
    figure = blank(height, theme)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[5, 1])
    dressed(left, theme, frame=False)
    dressed(right, theme, frame=False)
    if max(shown.shape) <= BUBBLES:
        _bubbles(left, shown, height, theme)
    else:
        _counts_as_colours(figure, left, shown, theme)
    right.barh(np.arange(len(kept)) + 0.5, counts[kept].sum(axis=1), height=0.7, color=theme.palette[0], linewidth=0)
    right.grid(False, axis="y")
    right.tick_params(axis="y", labelleft=False)
    _few_amounts(right)
    left.set_ylim(len(kept), 0)
    left.set_xlim(0, shown.shape[1])
    _number_ticks(left, "y", len(kept), 1, kept)
    _number_ticks(left, "x", shown.shape[1], size)
    rows = "client" if len(kept) == total else f"client, {len(kept)} of {total} shown"
    titled(left, theme, "class" if size == 1 else f"class, {size} neighbours per column", rows)
    titled(right, theme, "samples", "")
    return figure


def _write_cells(axes: Axes, scores: Floats, theme: Theme) -> None:
    """Numbers in the cells where they fit, dark on light and light on dark."""
    if scores.shape[1] > 16 or scores.shape[0] > 40:
        return
    colours = ramp(theme)
    for (row, column), value in np.ndenumerate(scores):
        known = bool(np.isfinite(value))
        axes.text(
            column + 0.5,
            row + 0.5,
            f"{value:.0f}" if known else NOTHING,
            ha="center",
            va="center",
            fontsize=SMALL,
            color=readable_on(colours(value / 100 if known else 0.0), theme),
        )


def _bubbles(axes: Axes, counts: Floats, height: float, theme: Theme) -> None:
    """Areas in proportion to the counts; the largest just fills its cell."""
    from matplotlib.collections import EllipseCollection

    rows, columns = np.nonzero(counts)
    shares = np.sqrt(counts[rows, columns] / max(counts.max(), 1))
    # In points: the axes are about 4.7 inches wide, and 0.8 inches of the height go to texts.
    cell = min(0.95 * 72 * min(4.7 / counts.shape[1], (height - 0.8) / counts.shape[0]), 40.0)
    axes.add_collection(
        EllipseCollection(
            widths=cell * shares,
            heights=cell * shares,
            angles=np.zeros(rows.size),
            units="points",
            offsets=np.column_stack([columns + 0.5, rows + 0.5]),
            offset_transform=axes.transData,
            facecolors=theme.palette[0],
            linewidths=0,
        )
    )
    axes.set_title(f"largest bubble: {counts.max():,.0f} samples", loc="left", fontsize=SMALL, color=theme.muted, pad=4)


def _counts_as_colours(figure: Figure, axes: Axes, counts: Floats, theme: Theme) -> None:
    from matplotlib.colors import PowerNorm

    # The square root keeps small counts visible beside the large ones that skewed clients hold.
    norm = PowerNorm(0.5, vmin=0, vmax=max(float(counts.max()), 1.0))
    mesh = axes.pcolormesh(counts, cmap=ramp(theme), norm=norm)
    axes.grid(False)
    _colour_key(figure, axes, mesh, "training samples of the class", theme)


def _colour_key(figure: Figure, axes: Axes, drawn: ScalarMappable, words: str, theme: Theme) -> None:
    from matplotlib.ticker import MaxNLocator

    bar = figure.colorbar(drawn, ax=axes, location="top", fraction=0.05, aspect=50, shrink=0.6, pad=0.03)
    bar.set_ticks(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    bar.outline.set(edgecolor=theme.muted, linewidth=0.6)
    bar.ax.tick_params(colors=theme.muted, labelcolor=theme.ink, labelsize=SMALL, length=2)
    bar.set_label(words, fontsize=NORMAL, color=theme.ink)


def _number_ticks(axes: Axes, side: str, shown: int, size: int, names: np.ndarray | None = None) -> None:
    """Class or client numbers at the middles of their cells: all of them if there is room, else round ones."""
    room = 30 if side == "y" else 20 if shown * size <= 100 else 13
    step = next(step for step in (1, 2, 5, 10, 20, 25, 50, 100, 200) if shown / step <= room)
    places = np.arange(0, shown, step)
    texts = [str(int(place) * size if names is None else int(names[place])) for place in places]
    (axes.set_xticks if side == "x" else axes.set_yticks)(places + 0.5, texts)


def _few_amounts(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=2, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _count_table(label_counts: Sequence[Sequence[int]]) -> Floats:
    if len({len(row) for row in label_counts}) != 1 or not len(label_counts[0]):
        raise UserError("label counts must be a table of clients by classes with at least one of each")
    return np.array(label_counts, dtype=np.float64)


def _mean_over_neighbours(scores: Floats) -> tuple[Floats, int]:
    known = np.isfinite(scores)
    sums, size = grouped(np.where(known, scores, 0.0), MOST_CLASSES, axis=1)
    counts, _ = grouped(known.astype(np.float64), MOST_CLASSES, axis=1)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0), size
