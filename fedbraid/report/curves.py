"""Curves with bands: a metric over rounds, or over what was spent to get there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedbraid.core.metrics import METRICS as FURTHER
from fedbraid.core.metrics import is_share
from fedbraid.errors import unknown
from fedbraid.report import panels as panels_of
from fedbraid.report.looks import Look
from fedbraid.report.run_groups import RunRecord
from fedbraid.report.series import Curve, Floats, series
from fedbraid.report.style import LIGHT, SMALL, Theme, legend, new_figure, stroke, write_message
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
MOST_BANDS = 8
"""Curves of a panel that may have bands; more of them would hide each other."""
THIN, TALL = 1.1, 3.6
"""A line among more than these, and the height of their panel."""
EARLY, ROOM = 10, 0.05
"""The first of so many parts of a curve is early; the share of a panel's height that is left free at its ends."""


@dataclass(frozen=True, eq=False)
class CurvePanels:
    """The content of a figure of curves."""

    panels: Mapping[str, Mapping[str, Curve]]  # by the panel's title and the curve's label
    labels: Sequence[str]  # of the legend; a curve without one of these is not drawn
    looks: Mapping[str, Look]
    y: str  # the axis' name
    by: str = "round"  # or bytes, seconds, aggregations
    percent: bool = False  # the numbers are shares
    log_x: bool = False
    focus: bool = False  # cut off the low values of the first rounds
    target: float | None = None


def curves(
    records: Sequence[RunRecord], metric: str = "accuracy", *, target: float | None = None, theme: Theme = LIGHT
) -> Figure:
    """The metric over rounds: a curve per method."""
    return _of_runs(records, metric, "round", target, theme)


def cost(
    records: Sequence[RunRecord], metric: str = "accuracy", *, target: float | None = None, theme: Theme = LIGHT
) -> Figure:
    """The metric against all bytes moved so far; the method further left paid less for the same height."""
    return _of_runs(records, metric, "bytes", target, theme)


def _of_runs(records: Sequence[RunRecord], metric: str, by: str, target: float | None, theme: Theme) -> Figure:
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    found = series(records, metric, by)
    if not found:
        return write_message(new_figure(2.0, theme), "no round has been evaluated yet", theme)
    totals = [float(one.x[-1]) for one in found.values() if one.x[-1] > 0]
    if not totals:
        return write_message(new_figure(2.0, theme), "no traffic has been counted yet", theme)
    # Methods an order of magnitude apart would leave the cheap ones as a stub at the left edge.
    apart = by == "bytes" and max(totals) > 8 * min(totals)
    looks = {label: Look(number) for number, label in enumerate(found)}
    share = is_share(metric)
    return curve_figure(
        CurvePanels({"": found}, [*found], looks, METRICS[metric], by, share, log_x=apart, target=target),
        each=3.05,
        theme=theme,
    )


def curve_figure(shown: CurvePanels, *, each: float = 2.5, theme: Theme = LIGHT) -> Figure:
    """A panel for each title, in it the curves with bands of one standard deviation; `each` is a panel's height."""
    crowded = any(len(found) > MOST_BANDS for found in shown.panels.values()) and len(shown.panels) > 1
    figure, panels = panels_of.make_panels([*shown.panels], TALL if crowded else each, theme, shown.labels)
    scale = 100.0 if shown.percent else 1.0
    everything = [one for found in shown.panels.values() for one in found.values()]
    words, unit = _axis(shown.by, everything)
    handles = {}
    for title, axes in panels.items():
        found = shown.panels[title]
        for number, label in enumerate(shown.labels):
            if (one := found.get(label)) is None:
                continue
            look = shown.looks[label]
            drawn = stroke(look.colour, one.x.size, theme, look.dashes)
            if len(found) > MOST_BANDS:
                drawn["linewidth"] = THIN
            handles[label], *_ = axes.plot(
                one.x / unit, scale * one.mean, **drawn, zorder=3 + number / len(shown.labels)
            )
            if one.seeds > 1 and len(found) <= MOST_BANDS:
                # Bands of one colour are distinguished by their edges.
                edge = {"linewidth": 0.0 if look.dashes is None else 0.6, "linestyle": drawn["linestyle"]}
                low, high = scale * one.low, scale * one.high
                axes.fill_between(one.x / unit, low, high, color=drawn["color"], alpha=0.16, **edge)
        if shown.target is not None:
            _target_line(axes, scale * shown.target, theme)
        if shown.focus and (heights := shown_heights([*found.values()])):
            axes.set_ylim(scale * heights[0], scale * heights[1])
        elif not shown.focus:
            _tame(axes, [*found.values()], shown.percent)
        whole_numbers(axes) if shown.by == "round" and not shown.log_x else amounts(axes, logarithmic=shown.log_x)
    panels_of.name_axes(panels, words, shown.y, theme)
    legend(figure, [handles[label] for label in shown.labels], shown.labels, theme)
    return figure


def about_bands(panels: Sequence[Sequence[Curve]]) -> str:
    """Return a sentence on the bands, to follow another one; nothing where no curve is of several seeds."""
    several = [panel for panel in panels if any(one.seeds > 1 for one in panel)]
    if not several:
        return ""
    if not any(len(panel) <= MOST_BANDS for panel in several):
        return f" Lines are means over seeds; more than {MOST_BANDS} lines have no bands."
    fewer = "" if all(len(panel) <= MOST_BANDS for panel in several) else f", in panels of up to {MOST_BANDS} lines"
    return f" The band is one standard deviation over seeds on either side{fewer}."


def shown_heights(found: Sequence[Curve]) -> tuple[float, float] | None:
    """Return the ends of the axis that show how the curves differ once they have begun.

    None if nothing of the first tenth of their rounds is below the rest.
    """
    banded = len(found) <= MOST_BANDS and any(one.seeds > 1 for one in found)
    lows, highs = ([getattr(one, end if banded else "mean") for one in found] for end in ("low", "high"))
    lowest, highest = _finite(lows), _finite(highs)
    later = _finite([low[low.size // EARLY :] for low in lows])
    if not later.size or not highest.size:
        return None
    bottom, top, least = float(later.min()), float(highest.max()), float(lowest.min())
    room = ROOM * ((top - bottom) or (top - least))
    return (bottom - room, top + room) if least < bottom - room else None


def scale_of(metric: str) -> float:
    """Accuracies and other shares are shown in percent."""
    return 100.0 if is_share(metric) else 1.0


def bounded(axes: Axes) -> None:
    """A share never shows impossible values."""
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


def _axis(by: str, found: Sequence[Curve]) -> tuple[str, float]:
    """The name of the horizontal axis, and the size of its unit."""
    if by == "bytes":
        unit, size = byte_unit(max(float(one.x[-1]) for one in found))
        return f"data moved so far, down and up, all clients ({unit})", size
    return {"seconds": "seconds so far", "aggregations": "aggregations so far"}.get(by, by), 1.0


def _finite(parts: Sequence[Floats]) -> Floats:
    together: Floats = np.concatenate([np.empty(0), *parts])
    return together[np.isfinite(together)]


def _target_line(axes: Axes, height: float, theme: Theme) -> None:
    axes.axhline(height, color=theme.muted, linewidth=0.9, linestyle=(0, (2, 2)), zorder=2)
    axes.annotate(
        "target",
        (0.0, height),
        # At the left a curve is still far from its target, whether it rises or falls.
        xycoords=axes.get_yaxis_transform(),
        xytext=(4, 2),
        textcoords="offset points",
        ha="left",
        va="bottom",
        fontsize=SMALL,
        color=theme.muted,
    )


def _tame(axes: Axes, found: Sequence[Curve], percent: bool) -> None:
    """A share never shows impossible values; a loss over more than two decades goes logarithmic."""
    if percent:
        bounded(axes)
        return
    values = _finite([one.mean for one in found])
    if values.size and values.min() > 0 and values.max() > 100 * values.min():
        axes.set_yscale("log")
