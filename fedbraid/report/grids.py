"""Grids of coloured cells: how well each method knows each class, and what other grids are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedbraid.report.run_groups import RunRecord
from fedbraid.report.series import Floats, class_scores, grouped
from fedbraid.report.style import (
    LIGHT,
    NORMAL,
    SMALL,
    Theme,
    label_axes,
    new_figure,
    ramp,
    readable_on,
    style_axes,
    write_message,
)
from fedbraid.report.words import NOTHING, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

MOST_ROWS, MOST_CLASSES = 200, 200
"""More methods or classes than this are left out or grouped: a cell needs a few pixels."""


def per_class(records: Sequence[RunRecord], *, theme: Theme = LIGHT) -> Figure:
    """The final accuracy of every method on every class."""
    labels, scores = class_scores(records)
    if not labels:
        return write_message(new_figure(2.0, theme), "no accuracy per class has been measured", theme)
    labels, scores = labels[:MOST_ROWS], 100 * scores[:MOST_ROWS]
    scores, size = _mean_over_neighbours(scores)
    figure = new_figure(min(16.0, 1.25 + max(0.26 * len(labels), 0.5)), theme)
    axes = style_axes(figure.subplots(), theme, frame=False, grid=False)
    axes.set_facecolor(theme.grid)  # shows through where a class has no accuracy, which is not an accuracy of 0
    mesh = axes.pcolormesh(scores, cmap=ramp(theme), vmin=0, vmax=100, edgecolors=theme.paper)
    mesh.set_linewidth(1.0 if scores.shape[1] <= 40 else 0.0)
    if scores.shape[1] <= 16 and len(labels) <= 40:
        texts = np.array([[f"{score:.0f}" if np.isfinite(score) else NOTHING for score in row] for row in scores])
        write_cells(axes, texts, np.nan_to_num(scores / 100), theme)
    axes.invert_yaxis()
    crowded = len(labels) > 55
    axes.set_yticks(
        np.arange(len(labels)) + 0.5,
        [shortened(label, 34) for label in labels],
        fontsize=4.0 if crowded else SMALL,
        parse_math=False,
    )
    number_ticks(axes, "x", scores.shape[1], size)
    label_axes(axes, theme, "class" if size == 1 else f"class, {size} neighbours per column", "")
    colour_key(figure, axes, mesh, "accuracy (%)", theme)
    return figure


def write_cells(axes: Axes, texts: NDArray[np.str_], levels: Floats, theme: Theme) -> None:
    """Words in the cells, dark on light and light on dark; `levels` are the cells' places on the ramp, 0 to 1."""
    colours = ramp(theme)
    for (row, column), words in np.ndenumerate(texts):
        axes.text(
            column + 0.5,
            row + 0.5,
            words,
            ha="center",
            va="center",
            fontsize=SMALL,
            color=readable_on(colours(float(levels[row, column])), theme),
        )


def colour_key(figure: Figure, axes: Axes, drawn: ScalarMappable, words: str, theme: Theme) -> None:
    from matplotlib.ticker import MaxNLocator

    bar = figure.colorbar(drawn, ax=axes, location="top", fraction=0.05, aspect=50, shrink=0.6, pad=0.03)
    bar.set_ticks(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    bar.outline.set(edgecolor=theme.muted, linewidth=0.6)
    bar.ax.tick_params(colors=theme.muted, labelcolor=theme.ink, labelsize=SMALL, length=2)
    bar.set_label(words, fontsize=NORMAL, color=theme.ink)


def number_ticks(axes: Axes, side: str, shown: int, size: int, names: np.ndarray | None = None) -> None:
    """Class or client numbers at the middles of their cells: all of them if there is room, else round ones."""
    room = 30 if side == "y" else 20 if shown * size <= 100 else 13
    step = next(step for step in (1, 2, 5, 10, 20, 25, 50, 100, 200) if shown / step <= room)
    places = np.arange(0, shown, step)
    texts = [str(int(place) * size if names is None else int(names[place])) for place in places]
    (axes.set_xticks if side == "x" else axes.set_yticks)(places + 0.5, texts)


def _mean_over_neighbours(scores: Floats) -> tuple[Floats, int]:
    known = np.isfinite(scores)
    sums, size = grouped(np.where(known, scores, 0.0), MOST_CLASSES, axis=1)
    counts, _ = grouped(known.astype(np.float64), MOST_CLASSES, axis=1)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0), size
