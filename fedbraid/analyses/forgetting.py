"""Forgetting (ASD figure 1): what one round of local training does to each class on each client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedbraid.analyses.analysis import Analysis
from fedbraid.report.series import Floats
from fedbraid.report.style import SMALL, Theme, label_axes, new_figure, style_axes
from fedbraid.training.evaluation import evaluate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded


def class_accuracies(run: Recorded, models: Tensor, buffers: Tensor) -> Floats:
    """[C, classes] the test accuracy of each of some models [C, D] on every class; NaN where a class is not tested."""
    e = run.simulation
    each = [evaluate(e.model, w, b, e.test)[0]["per_class"] for w, b in zip(models, buffers, strict=True)]
    return np.array(each, dtype=np.float64)


def forgetting(run: Recorded) -> Analysis:
    """Test accuracy of each class before and after local training, for the clients of the next round.

    A class is rare on a client that has less of it than an even share. `forgotten` is the mean over clients and classes
    of what was lost, gains counting nothing.
    """
    run.need_classes("forgetting")
    round = run.next_round
    if round.job.model.dim() == 1:  # one model for everybody, looked at once
        one = class_accuracies(run, round.job.model[None], round.job.buffers[None])
        before = np.broadcast_to(one, (len(round.cohort), one.shape[1]))
    else:
        before = class_accuracies(run, round.received, round.received_buffers)
    after = class_accuracies(run, round.models, round.buffers)
    counts = run.simulation.label_counts[round.cohort.ids].astype(np.float64)
    shares = counts / counts.sum(1, keepdims=True)
    change, rare = after - before, shares < 1 / shares.shape[1]
    ids = round.cohort.ids
    clients, classes = np.meshgrid(ids, np.arange(shares.shape[1]), indexing="ij")
    parts = {"client": clients, "class": classes, "share": shares, "before": before, "after": after, "change": change}

    def draw(*, theme: Theme) -> Figure:
        even = np.abs(shares - 1 / shares.shape[1]).sum(1)
        shown = [int(even.argmax()), int(even.argmin())] if len(ids) > 1 else [0]
        figure = new_figure(3.8, theme)
        panels = figure.subplots(2, len(shown), sharex=True, sharey="row", squeeze=False)
        for (top, bottom), k in zip(panels.T, shown, strict=True):
            numbers = np.arange(shares.shape[1])
            colours = [theme.palette[1] if lost else theme.palette[0] for lost in change[k] < 0]
            style_axes(top, theme).bar(numbers, 100 * change[k], color=colours)
            top.axhline(0.0, color=theme.ink, linewidth=0.8)
            top.set_title(f"client {ids[k]}", fontsize=SMALL, color=theme.ink)
            style_axes(bottom, theme).bar(numbers, 100 * shares[k], color=theme.muted)
            label_axes(bottom, theme, "class", "")
        label_axes(panels[0, 0], theme, "", "change (points)")
        label_axes(panels[1, 0], theme, "class", "share of labels (%)")
        return figure

    return Analysis(
        "forgetting",
        "What local training forgets",
        "Above: how the test accuracy of each class changes with one round of local training, for the most and the "
        "least skewed client. Below: what the client holds. Bars below zero where it holds little are forgetting.",
        {
            "rare": _mean(change[rare]),
            "common": _mean(change[~rare]),
            "forgotten": _mean(np.maximum(-change, 0.0).ravel()),
        },
        {key: values.ravel().tolist() for key, values in parts.items()},
        draw,
    )


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None
