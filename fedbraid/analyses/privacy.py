"""Privacy: what noise on what clients tell costs in accuracy, and buys in (ε, δ) (rFedAvg figure 12)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbraid.analyses.analysis import Analysis, labelled
from fedbraid.privacy import budget as accountant
from fedbraid.report.curves import METRICS
from fedbraid.report.run_groups import common_metric
from fedbraid.report.style import SMALL, Theme, label_axes, new_figure, style_axes
from fedbraid.report.summaries import summarise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded


def bought(run: Recorded) -> dict[str, float | None]:
    """The noise of a run's strands, over its sensitivity, and the (ε, δ) after the rounds that it has done.

    Without noise ε is infinite. Where several strands add noise, each releases by itself: their ε add up.
    """
    so_far = run.rounds[-1] if run.rounds and "privacy" in run.rounds[-1] else None
    told = (so_far or accountant.report(run.chain, len(run.rounds))).get("privacy", {})
    if not told:
        return {"noise": 0.0, "epsilon": inf, "delta": None}
    each = [inf if strand["epsilon"] is None else strand["epsilon"] for strand in told.values()]
    return {
        "noise": min(strand["noise"] for strand in told.values()),
        "epsilon": sum(each),
        "delta": sum(strand["delta"] for strand in told.values()),
    }


def privacy(runs: Sequence[Recorded]) -> Analysis:
    """The last score of each run against the noise of its strands, with ε by the accountant."""
    metric = common_metric(runs)
    rows: list[dict[str, Any]] = []
    for label, run in labelled(runs).items():
        rows.append({"run": label} | bought(run) | {metric: summarise(run.rounds)["last"]})
    rows.sort(key=lambda row: float(row["noise"]))
    quantities = {
        f"{key}/{row['run']}" if len(rows) > 1 else key: row[key]
        for row in rows
        for key in ("noise", "epsilon", metric)
    }

    def draw(*, theme: Theme) -> Figure:
        figure = new_figure(3.2, theme)
        axes = style_axes(figure.subplots(), theme)
        levels = sorted({(row["noise"], row["epsilon"]) for row in rows}, key=lambda level: (level[0], -level[1]))
        at = [levels.index((row["noise"], row["epsilon"])) for row in rows]
        scale = 100 if metric == "accuracy" else 1
        scores = [np.nan if row[metric] is None else row[metric] * scale for row in rows]
        means = [np.mean([s for s, place in zip(scores, at, strict=True) if place == k]) for k in range(len(levels))]
        axes.plot(range(len(levels)), means, color=theme.muted, linewidth=1.2)
        axes.scatter(at, scores, color=theme.palette[0], s=22, zorder=3)
        named = [f"σ = {noise:g}\n{_written(epsilon)}" for noise, epsilon in levels]
        axes.set_xticks(range(len(levels)), named, fontsize=SMALL)
        label_axes(axes, theme, "noise over sensitivity", METRICS[metric])
        return figure

    return Analysis(
        "privacy",
        "Accuracy against noise",
        "Each dot is a run; further right is more noise and a smaller ε, which is more private. The line is their "
        "mean: where it falls, privacy costs accuracy.",
        quantities,
        {key: [row[key] for row in rows] for key in rows[0]},
        draw,
    )


def _written(epsilon: float) -> str:
    return "no privacy" if epsilon == inf else f"ε = {accountant.epsilon_text(epsilon)}"
