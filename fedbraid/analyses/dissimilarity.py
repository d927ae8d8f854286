"""Gradient dissimilarity (ASD equation 13): how much clients' gradients disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from fedbraid.analyses.analysis import Analysis
from fedbraid.analyses.clients import gradients, task_gradients
from fedbraid.report.style import NORMAL, SMALL, Theme, label_axes, new_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded


def disagreement(g: Tensor) -> float:
    """G_d = (mean over clients of ‖∇f_k‖²) / ‖mean of ∇f_k‖² of gradients [C, D]: 1 if all are the same, else more."""
    return float(g.square().sum(1).mean() / g.mean(0).square().sum())


WHERE = {
    "start": "at the server's model",
    "end": "after local training, at the mean model",
    "task": "there, of the loss on the data alone",
}


def dissimilarity(run: Recorded) -> Analysis:
    """G_d of what clients follow: at the server's model (`start`), and at the mean of what they make of it (`end`).

    A pull towards the received model (ASD, FedProx) is nothing at that model itself, but it is at the end. `task` is
    the end without what the method adds: G_d(w, λ) beside G_d(w, 0).
    """
    round = run.next_round
    after = round.after.cohort_mean
    assert after is not None
    start, (end, _) = round.before.w, after
    found = {"start": gradients(run, start), "end": gradients(run, end), "task": task_gradients(run, end)}
    values = {name: disagreement(g) for name, g in found.items()}
    ids = round.cohort.ids.tolist()
    columns: dict[str, list[float | str]] = {"at": [], "client": [], "norm": [], "cosine": []}
    for name, g in found.items():
        mean = g.mean(0)
        norms = g.norm(dim=1)
        cosines = g @ mean / (norms * mean.norm())
        columns["at"] += [name] * len(ids)
        columns["client"] += ids
        columns["norm"] += norms.tolist()
        columns["cosine"] += cosines.tolist()

    def draw(*, theme: Theme) -> Figure:
        figure = new_figure(2.6, theme)
        axes = style_axes(figure.subplots(), theme)
        names = list(WHERE)
        axes.barh(range(len(names)), [values[name] for name in names], color=theme.palette[0], height=0.6)
        axes.axvline(1.0, color=theme.ink, linewidth=1.0)
        axes.set_yticks(range(len(names)), [WHERE[name] for name in names], fontsize=SMALL)
        axes.invert_yaxis()
        label_axes(axes, theme, "gradient dissimilarity", "")
        axes.xaxis.label.set_fontsize(NORMAL)
        return figure

    return Analysis(
        "dissimilarity",
        "Gradient dissimilarity",
        "1 (the line) = all clients' gradients are the same; the longer a bar, the more they cancel out. Where the "
        "second bar is shorter than the third, the method brings clients together.",
        values,
        columns,
        draw,
    )
