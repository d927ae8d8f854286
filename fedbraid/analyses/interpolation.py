"""Mixtures of two clients' models, w = (1 − r) w_A + r w_B: whether the average by data size is the best one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fedbraid.analyses.analysis import Analysis
from fedbraid.analyses.discrepancy import accuracies
from fedbraid.config.registry import whole
from fedbraid.errors import UserError
from fedbraid.report.style import Theme, label_axes, legend, new_figure, stroke, style_axes
from fedbraid.training.evaluation import evaluate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded


def pairs_of_similar_size(sizes: np.ndarray, count: int) -> list[tuple[int, int]]:
    """The two whose sizes differ least, then the two of the others whose sizes do, and so on."""
    left, pairs = set(range(len(sizes))), list[tuple[int, int]]()
    while len(pairs) < count and len(left) > 1:
        both = [(i, j) for i in sorted(left) for j in sorted(left) if i < j]
        pair = min(both, key=lambda ij: abs(int(sizes[ij[0]]) - int(sizes[ij[1]])))
        pairs.append(pair)
        left -= set(pair)
    return pairs


def interpolation(run: Recorded, pairs: int = 3, points: int = 11, initial: bool = False) -> Analysis:
    """FedDisco figure 2 (b): the test accuracy along the line between the models of two clients of similar size.

    B is the better one alone. The models are those after local training in the round that would come next; with
    `initial` in the run's first round, from the model that it began with, as in the paper.
    """
    run.need_classes("interpolation")
    points = whole("points", points, 2)
    round, e = run.first_round if initial else run.next_round, run.simulation
    sizes, alone = e.clients.sizes[round.cohort.ids], accuracies(run, round)
    if len(sizes) < 2:
        raise UserError("interpolation needs two clients in a round; set sampling.clients to 2 or more")
    shares = np.linspace(0, 1, points)
    curves, by_size = list[np.ndarray](), list[float]()
    ends = [sorted(pair, key=lambda k: alone[k]) for pair in pairs_of_similar_size(sizes, whole("pairs", pairs))]
    for a, b in ends:

        def accuracy(r: float, a: int = a, b: int = b) -> float:
            w, buffers = (torch.lerp(part[a], part[b], r) for part in (round.models, round.buffers))
            return float(evaluate(e.model, w, buffers, e.test)[0]["accuracy"])

        curves.append(np.array([alone[a], *(accuracy(float(r)) for r in shares[1:-1]), alone[b]]))
        by_size.append(accuracy(float(sizes[b] / (sizes[a] + sizes[b]))))

    numbers: dict[str, float | None] = {}
    for k, (curve, plain) in enumerate(zip(curves, by_size, strict=True), 1):
        numbers |= {f"pair{k}_best": float(shares[curve.argmax()]), f"pair{k}_gain": float(curve.max() - plain)}
        numbers |= {f"pair{k}_r{100 * r:.4g}": float(v) for r, v in zip(shares, curve, strict=True)}

    def draw(*, theme: Theme) -> Figure:
        figure = new_figure(3.4, theme)
        axes, handles, labels = style_axes(figure.subplots(), theme), [], []
        for k, ((a, b), curve) in enumerate(zip(ends, curves, strict=True)):
            look = stroke(k, points, theme)
            handles += axes.plot(shares, curve, **look)
            axes.plot(shares[curve.argmax()], curve.max(), "*", color=look["color"], markersize=12)
            labels.append(f"clients {round.cohort.ids[a]} and {round.cohort.ids[b]}")
        axes.axvline(0.5, color=theme.muted, linewidth=0.8)
        label_axes(axes, theme, "weight r of the better model", "test accuracy")
        legend(figure, handles, labels, theme)
        return figure

    rows = [(k, a, b, r, v) for k, (a, b) in enumerate(ends) for r, v in zip(shares, curves[k], strict=True)]
    ids = round.cohort.ids
    return Analysis(
        "interpolation",
        "Mixtures of two clients' models",
        "Stars are the best mixtures. Right of the middle, the better of two models of similar data size should weigh "
        "more than its size says.",
        numbers,
        {
            "pair": [k + 1 for k, *_ in rows],
            "a": [int(ids[a]) for _, a, *_ in rows],
            "b": [int(ids[b]) for _, _, b, *_ in rows],
            "r": [float(r) for *_, r, _ in rows],
            "accuracy": [float(v) for *_, v in rows],
        },
        draw,
    )
