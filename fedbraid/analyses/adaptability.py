"""Adaptability (FedACD): how well local models do on everybody's distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedbraid.analyses.analysis import Analysis
from fedbraid.analyses.clients import answers
from fedbraid.analyses.forgetting import class_accuracies
from fedbraid.core.strand import Client
from fedbraid.core.tree import Tree
from fedbraid.report.series import Floats
from fedbraid.report.style import Theme, label_axes, new_figure, ramp, style_axes
from fedbraid.strands.acd import class_matrix, from_identity
from fedbraid.training.evaluation import evaluate, per_client

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded


def risks(accuracies: Floats, counts: Floats) -> Floats:
    """[C] R(φ_m) = 1/N Σ_n Σ_c ε_c π_c^n, from models' accuracies [C, classes] and clients' label counts [N, classes].

    A class without test samples counts in no client's distribution π, a client with no other class not at all.
    """
    known = ~np.isnan(accuracies).any(0)
    totals = counts[:, known].sum(1, keepdims=True)
    held = counts[:, known] / np.where(totals, totals, np.nan)
    result: Floats = (1 - accuracies[:, known]) @ np.nanmean(held, axis=0)
    return result


def adaptability(run: Recorded, tau: float = 1 - 1e-5) -> Analysis:
    """Of the models of the next round's clients after local training:

    kl        KL(P ‖ Q), the mean over a client's classes and over clients, where P_ij is the mean probability of class
              j on the client's own samples of class i and Q is `tau` on its diagonal, even elsewhere (Table 9)
    risk      the error on test sets that follow all clients' distributions, mean over local models (Table 3)
    accuracy  of the model handed out, on a test set that follows each client's distribution, mean (Table 2)
    """
    run.need_classes("adaptability")
    e, round = run.simulation, run.next_round

    def matrix(c: Client) -> Tree:
        P = class_matrix(c.start, c)
        return {"P": P, "kl": from_identity(P, c.label_counts, tau)}

    told = answers(run, round.models, round.buffers, matrix)
    counts = e.label_counts
    each = risks(class_accuracies(run, round.models, round.buffers), counts)
    metrics, correct = evaluate(e.model, *e.deployed(), e.test)
    handed_out = per_client(metrics["per_class"], correct, e.partition, counts)
    ids = round.cohort.ids
    P = told["P"].cpu().numpy()

    def draw(*, theme: Theme) -> Figure:
        present = counts[ids] > 0
        k = int(present.sum(1).argmax())
        figure = new_figure(3.0, theme)
        left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
        shown = np.where(present[k][:, None], P[k], np.nan)
        image = style_axes(left, theme, grid=False).imshow(shown, cmap=ramp(theme), vmin=0, vmax=1, aspect="auto")
        bar = figure.colorbar(image, ax=left)
        bar.ax.tick_params(colors=theme.muted, labelcolor=theme.ink, labelsize=8)
        label_axes(left, theme, f"predicted class (client {ids[k]})", "true class")
        style_axes(right, theme).scatter(told["kl"].tolist(), each, color=theme.palette[0], s=18)
        label_axes(right, theme, "KL(P ‖ Q)", "risk on all clients")
        return figure

    return Analysis(
        "adaptability",
        "Adaptability of local models",
        "Left: what a trained client makes of its own classes; an even diagonal is good, rows without samples are left "
        "out. Right: each local model; lower and further left is better.",
        {
            "kl": float(told["kl"].mean()),
            "risk": float(each.mean()),
            "accuracy": handed_out["mean"],
        },
        {"client": ids.tolist(), "kl": told["kl"].tolist(), "risk": each.tolist()}
        | {"accuracy": [handed_out["each"][i] for i in ids]},
        draw,
    )
