"""Fairness: how evenly a model serves clients and classes (FedDisco Table 12 and figure 8, rFedAvg figure 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedbraid.analyses.analysis import Analysis
from fedbraid.data.groups import class_groups
from fedbraid.report.style import Theme, label_axes, new_figure, style_axes
from fedbraid.training.evaluation import evaluate, per_client
from fedbraid.training.watches import Scored, measure_fairness

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded


def fairness(run: Recorded) -> Analysis:
    """The accuracy on each client and each class of the model that the run hands out."""
    run.need_classes("fairness")
    e = run.simulation
    metrics, correct = evaluate(e.model, *e.deployed(), e.test)
    counts = e.clients.label_counts.cpu().numpy()
    scored = Scored(metrics["per_class"], correct, e.partition, counts)
    clients: list[float | None] = per_client(scored.per_class, correct, e.partition, counts)["each"]
    group_of = {c: name for name, members in class_groups(counts.sum(0)).items() for c in members}
    classes = range(counts.shape[1])
    columns: dict[str, list[Any]] = {
        "of": ["client"] * len(clients) + ["class"] * len(classes),
        "number": [*range(len(clients)), *classes],
        "samples": [int(n) for n in (*counts.sum(1), *counts.sum(0))],
        "group": [""] * len(clients) + [group_of[c] for c in classes],
        "accuracy": [*clients, *scored.per_class],
    }

    def draw(*, theme: Theme) -> Figure:
        figure = new_figure(3.0, theme)
        left, right = figure.subplots(1, 2, sharey=True)
        ranked = sorted(100 * a for a in clients if a is not None)
        worst = max(1, len(ranked) // 10)
        colours = [theme.palette[1]] * worst + [theme.palette[0]] * (len(ranked) - worst)
        style_axes(left, theme).bar(range(len(ranked)), ranked, color=colours)
        label_axes(left, theme, "clients, worst first", "test accuracy (%)")
        order = np.argsort(-counts.sum(0), kind="stable")
        shades = {"head": theme.palette[0], "middle": theme.palette[5], "tail": theme.palette[1]}
        heights = [100 * (scored.per_class[c] or 0.0) for c in order]
        style_axes(right, theme).bar(range(len(order)), heights, color=[shades[group_of[c]] for c in order])
        right.set_xticks(range(len(order)), [str(c) for c in order] if len(order) <= 20 else [""] * len(order))
        label_axes(right, theme, "classes, most training samples first", "")
        return figure

    return Analysis(
        "fairness",
        "Accuracy on each client and each class",
        "The more even the bars, the fairer the model. Left: the worst tenth of the clients stands out. Right: head, "
        "middle and tail classes, by their training samples.",
        measure_fairness(scored),
        columns,
        draw,
    )
