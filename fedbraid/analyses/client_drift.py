"""Client drift: how far local training takes clients' models from the server's and from each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedbraid.analyses.analysis import Analysis
from fedbraid.report.style import Theme, label_axes, new_figure, stroke, style_axes
from fedbraid.training.watches import measure_drift

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded


QUANTITIES = "variance", "step", "length", "cosine"


def drift(run: Recorded) -> Analysis:
    """Drift over the rounds in which the log has it; else in the round that would come next."""
    seen = [line for line in run.rounds if "drift.variance" in line]
    lines: list[dict[str, Any]] = seen or [
        {"round": run.simulation.server.round + 1}
        | {f"drift.{key}": value for key, value in measure_drift(run.next_round).items()}
    ]
    columns = {"round": [line["round"] for line in lines]}
    columns |= {key: [line[f"drift.{key}"] for line in lines] for key in QUANTITIES}

    def draw(*, theme: Theme) -> Figure:
        from matplotlib.ticker import MaxNLocator

        figure = new_figure(2.8, theme)
        panels = figure.subplots(1, 3)
        names = ("mean ‖w_k − w‖²", "‖w⁺ − w‖", "mean cosine of updates")
        for axes, key, name in zip(panels, ("variance", "step", "cosine"), names, strict=True):
            values = [float("nan") if v is None else v for v in columns[key]]
            style_axes(axes, theme).plot(columns["round"], values, **stroke(0, len(values), theme))
            axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, min_n_ticks=1))
            label_axes(axes, theme, "round", name)
        return figure

    return Analysis(
        "drift",
        "Client drift",
        "Left: how far clients' models scatter around the server's. Middle: how far the server's model still moves. "
        "Right: 1 = all clients pull the same way, 0 = at right angles, below 0 = against each other.",
        {key: columns[key][-1] for key in QUANTITIES},
        columns,
        draw,
    )
