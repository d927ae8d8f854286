"""Local models' accuracy against data size and against label discrepancy (FedDisco figure 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fedbraid.analyses.analysis import Analysis
from fedbraid.core.label_distance import discrepancy as label_distance
from fedbraid.errors import unknown
from fedbraid.report.style import Theme, label_axes, new_figure, style_axes
from fedbraid.training.evaluation import evaluate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded
    from fedbraid.training.watches import TrainedRound

METRICS = "kl", "l1", "l2", "cosine"


def discrepancies(metric: str, counts: np.ndarray) -> np.ndarray:
    """[K] how far each client's labels, counted in [K, C], are from the uniform distribution."""
    if metric not in METRICS:
        raise unknown("discrepancy", metric, METRICS)
    shares = torch.from_numpy(counts / counts.sum(1, keepdims=True))
    uniform = torch.full_like(shares[0], 1 / shares.shape[1])
    return torch.stack([label_distance(metric, own, uniform) for own in shares]).numpy()


def correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Pearson's; None where one of them does not vary."""
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / scale) if scale > 1e-12 * len(x) else None


def accuracies(run: Recorded, round: TrainedRound) -> np.ndarray:
    """[C] each local model's accuracy on the test set."""
    e = run.simulation
    pairs = zip(round.models, round.buffers, strict=True)
    return np.array([evaluate(e.model, w, buffers, e.test)[0]["accuracy"] for w, buffers in pairs])


def discrepancy(run: Recorded, initial: bool = False) -> Analysis:
    """FedDisco figure 2 (c, d) of the models after local training in the round that would come next.

    With `initial` it is the run's first round, from the model that it began with, as in the paper.
    """
    run.need_classes("discrepancy")
    round = run.first_round if initial else run.next_round
    ids = round.cohort.ids
    counts = run.simulation.clients.label_counts.cpu().double().numpy()[ids]
    size = counts.sum(1) / counts.sum()
    apart = {metric: discrepancies(metric, counts) for metric in METRICS}
    accuracy = accuracies(run, round)

    def draw(*, theme: Theme) -> Figure:
        figure = new_figure(3.2, theme)
        panels = figure.subplots(1, 2, sharey=True)
        names = "relative size of the data", "L2 distance from all classes alike"
        for axes, x, name in zip(panels, (size, apart["l2"]), names, strict=True):
            style_axes(axes, theme).plot(x, accuracy, "o", color=theme.palette[0], markersize=5)
            for client, at in zip(ids, zip(x, accuracy, strict=True), strict=True):
                axes.annotate(str(client), at, xytext=(4, 3), textcoords="offset points", fontsize=7, color=theme.muted)
            label_axes(axes, theme, name, "local model's accuracy" if axes is panels[0] else "")
        return figure

    return Analysis(
        "discrepancy",
        "Data size, discrepancy and local accuracy",
        "Each point is a client's model, on the test set. The closer points lie to a line, the better the axis tells "
        "which local models are good; numbers are correlations, with discrepancies taken negative.",
        {"size": correlation(size, accuracy)} | {m: correlation(-d, accuracy) for m, d in apart.items()},
        {"client": ids.tolist(), "size": size.tolist(), "accuracy": accuracy.tolist()}
        | {metric: d.tolist() for metric, d in apart.items()},
        draw,
    )
