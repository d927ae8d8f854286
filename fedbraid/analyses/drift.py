"""Client drift: how far local training takes clients' models from the server's and from each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fedbraid.analyses.analysis import Analysis
from fedbraid.report.style import Theme, blank, dressed, stroke, titled
from fedbraid.training.watches import Numbers, TrainedRound, Watch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded


def measured(round: TrainedRound) -> Numbers:
    """Of a round's clients with models w_k, which began from x_k, and a server that went from w to w⁺:

    variance  mean of ‖w_k − w⁺‖² (FedSkip figure 1)
    step      ‖w⁺ − w‖ (ASD figure 12)
    length    mean of ‖w_k − x_k‖, the updates
    cosine    mean over pairs of clients of the cosine between their updates; None for a client alone
    """
    clients, w = len(round.cohort), round.after.w
    squares = lengths = moved = w.new_zeros(())
    directions = torch.zeros_like(w)  # Σ u_k / ‖u_k‖: its square is the sum of all cosines, a pair's and one's own
    for models, start in round.some_models():
        squares = squares + (models - w).square_().sum()
        updates = models - start
        norms = updates.square().sum(1).sqrt()
        lengths, moved = lengths + norms.sum(), moved + (norms > 0).sum()
        directions.addmv_(updates.T, torch.where(norms > 0, 1 / norms, 0.0))
    step = (w - round.before.w).norm()
    told = torch.stack([squares / clients, step, lengths / clients, directions.square().sum(), moved]).tolist()
    variance, step_length, length, total, n = told
    cosine = (total - n) / (n * (n - 1)) if n > 1 else None
    return {"variance": variance, "step": step_length, "length": length, "cosine": cosine}


WATCH = Watch("drift", "how far clients' models lie from the server's and from each other", trained=measured)

QUANTITIES = "variance", "step", "length", "cosine"


def drift(run: Recorded) -> Analysis:
    """Drift over the rounds in which the log has it; else in the round that would come next."""
    seen = [line for line in run.rounds if "drift.variance" in line]
    lines: list[dict[str, Any]] = seen or [
        {"round": run.experiment.server.round + 1}
        | {f"drift.{key}": value for key, value in measured(run.next_round).items()}
    ]
    columns = {"round": [line["round"] for line in lines]}
    columns |= {key: [line[f"drift.{key}"] for line in lines] for key in QUANTITIES}

    def draw(*, theme: Theme) -> Figure:
        from matplotlib.ticker import MaxNLocator

        figure = blank(2.8, theme)
        panels = figure.subplots(1, 3)
        names = ("mean ‖w_k − w‖²", "‖w⁺ − w‖", "mean cosine of updates")
        for axes, key, name in zip(panels, ("variance", "step", "cosine"), names, strict=True):
            values = [float("nan") if v is None else v for v in columns[key]]
            dressed(axes, theme).plot(columns["round"], values, **stroke(0, len(values), theme))
            axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, min_n_ticks=1))
            titled(axes, theme, "round", name)
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
