"""Courses as lines: the metric over rounds, and the metric against what was moved to get there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbraid.core.metrics import METRICS as FURTHER
from fedbraid.core.metrics import is_share
from fedbraid.errors import unknown
from fedbraid.report.run_groups import RunRecord
from fedbraid.report.series import Series, series
from fedbraid.report.style import LIGHT, SMALL, Theme, blank, dressed, legend, legend_height, said, stroke, titled
from fedbraid.report.words import byte_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS = {
    "accuracy": "test accuracy (%)",
    "loss": "test loss",
    "train_loss": "training loss",
    "validation_accuracy": "validation accuracy (%)",
    "validation_loss": "validation loss",
    **{name: f"test {metric.title_with_unit}" for name, metric in FURTHER.items()},
}


def curves(
    records: Sequence[RunRecord], metric: str = "accuracy", *, target: float | None = None, theme: Theme = LIGHT
) -> Figure:
    """The metric over rounds: a line per method, with a band from its lowest to its highest seed."""
    lines = _lines(records, metric)
    if not lines:
        return said(blank(2.0, theme), "no round has been evaluated yet", theme)
    figure, axes = line_figure([line.label for line in lines], theme)
    scale = scale_of(metric)
    for index, line in enumerate(lines):
        drawn = stroke(index, line.rounds.size, theme)
        axes.plot(line.rounds, scale * line.mean, **drawn, zorder=3 + index / len(lines))
        if line.seeds > 1:
            axes.fill_between(
                line.rounds, scale * line.low, scale * line.high, color=drawn["color"], alpha=0.16, linewidth=0
            )
    if target is not None:
        _target_line(axes, scale * target, theme)
    whole_numbers(axes)
    _tame(axes, lines, metric)
    titled(axes, theme, "round", METRICS[metric])
    legend(figure, axes.get_lines()[: len(lines)], [line.label for line in lines], theme)
    return figure


def cost(
    records: Sequence[RunRecord], metric: str = "accuracy", *, target: float | None = None, theme: Theme = LIGHT
) -> Figure:
    """The metric against all bytes moved so far; the method further left paid less for the same height."""
    lines = _lines(records, metric)
    if not any(line.moved[-1] > 0 for line in lines):
        return said(blank(2.0, theme), "no traffic has been counted yet", theme)
    figure, axes = line_figure([line.label for line in lines], theme)
    totals = [float(line.moved[-1]) for line in lines if line.moved[-1] > 0]
    unit, size = byte_unit(max(totals))
    scale = scale_of(metric)
    for index, line in enumerate(lines):
        drawn = stroke(index, line.rounds.size, theme)
        axes.plot(line.moved / size, scale * line.mean, **drawn, zorder=3 + index / len(lines))
    if target is not None:
        _target_line(axes, scale * target, theme)
    # Methods an order of magnitude apart would leave the cheap ones as a stub at the left edge.
    amounts(axes, logarithmic=max(totals) > 8 * min(totals))
    _tame(axes, lines, metric)
    titled(axes, theme, f"data moved so far, down and up, all clients ({unit})", METRICS[metric])
    legend(figure, axes.get_lines()[: len(lines)], [line.label for line in lines], theme)
    return figure


def _lines(records: Sequence[RunRecord], metric: str) -> list[Series]:
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    return series(records, metric)


def line_figure(labels: Sequence[str], theme: Theme) -> tuple[Figure, Axes]:
    """An empty figure with room for a legend."""
    figure = blank(min(14.0, 3.5 + legend_height(list(labels))), theme)
    return figure, dressed(figure.subplots(), theme)


def scale_of(metric: str) -> float:
    """Accuracies and other shares are shown in percent."""
    return 100.0 if is_share(metric) else 1.0


def _target_line(axes: Axes, height: float, theme: Theme) -> None:
    axes.axhline(height, color=theme.muted, linewidth=0.9, linestyle=(0, (2, 2)), zorder=2)
    axes.annotate(
        "target",
        (0.0, height),
        # At the left a course is still far from its target, whether it rises or falls.
        xycoords=axes.get_yaxis_transform(),
        xytext=(4, 2),
        textcoords="offset points",
        ha="left",
        va="bottom",
        fontsize=SMALL,
        color=theme.muted,
    )


def _tame(axes: Axes, lines: Sequence[Series], metric: str) -> None:
    """Accuracy never shows impossible values; a loss over more than two decades goes logarithmic."""
    if is_share(metric):
        bounded(axes, metric)
        return
    values = np.concatenate([line.mean[np.isfinite(line.mean)] for line in lines])
    if values.size and values.min() > 0 and values.max() > 100 * values.min():
        axes.set_yscale("log")


def bounded(axes: Axes, metric: str) -> None:
    """Accuracy never shows impossible values."""
    if is_share(metric):
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 0.0), min(high, 100.0) if high > low else high)


def whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, min_n_ticks=1))


def amounts(axes: Axes, *, logarithmic: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
