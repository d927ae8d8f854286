"""Classifier calibration with virtual representations (CCVR, Luo et al., 2021): a new head on a trained network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedbraid.analyses.analysis import Analysis
from fedbraid.analyses.clients import sums_over_clients
from fedbraid.core.last_layer import CALLED
from fedbraid.core.random import stream
from fedbraid.core.strand import Client
from fedbraid.core.tree import Tree
from fedbraid.errors import UserError
from fedbraid.report.style import Theme, label_axes, legend, new_figure, stroke, style_axes
from fedbraid.training.evaluation import evaluate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded


@dataclass(frozen=True)
class Moments:
    """The features of each class over all clients: how many, their mean and covariance."""

    n: Tensor  # [C]
    mean: Tensor  # [C, d]
    covariance: Tensor  # [C, d, d], divided by n − 1; 0 for a class of one sample


def class_sums(c: Client) -> Tree:
    """Sum a client's features, class by class: n [C], Σ f [C, d] and Σ f fᵀ [C, d, d]. Sums over clients are enough."""
    return c.over_data(
        c.start,
        lambda out, b: {
            "n": (y := b.y * b.mask[:, None]).sum(0),
            "f": y.T @ out.features,
            "ff": torch.einsum("nc,nd,ne->cde", y, out.features, out.features),
        },
    )


def moments(sums: Tree) -> Moments:
    """Return the mean and covariance of each class, from sums over all samples: those of the pooled features."""
    n = sums["n"]
    mean = sums["f"] / n.clamp(min=1)[:, None]
    scatter = sums["ff"] - n[:, None, None] * mean[:, :, None] * mean[:, None, :]
    return Moments(n, mean, scatter / (n - 1).clamp(min=1)[:, None, None])


def virtual_features(of: Moments, per_class: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw `per_class` features [m, d] and their labels [m] for each class that has samples, from its normal.

    Eigenvalues that rounding made negative count as 0, so that fewer samples than dimensions are no obstacle.
    """
    drawn, labels = [], []
    for c in torch.nonzero(of.n > 0)[:, 0].tolist():
        values, vectors = torch.linalg.eigh(of.covariance[c])
        z = torch.as_tensor(rng.normal(size=(per_class, len(values)))).to(of.mean)
        drawn.append(of.mean[c] + z * values.clamp(min=0).sqrt() @ vectors.T)
        labels += [c] * per_class
    return torch.cat(drawn), torch.tensor(labels, device=of.mean.device)


def refitted(head: Tree, x: Tensor, y: Tensor, *, epochs: int, lr: float, batch: int, rng: np.random.Generator) -> Tree:
    """Train a linear head further by SGD on the cross-entropy of features `x` [m, d] with labels `y` [m]."""
    weight, bias = head["weight"], head["bias"]
    for _ in range(epochs):
        order = torch.as_tensor(rng.permutation(len(x)), device=x.device)
        for part in torch.split(order, batch):
            error = (F.linear(x[part], weight, bias).softmax(-1) - F.one_hot(y[part], len(weight))) / len(part)
            weight, bias = weight - lr * error.T @ x[part], bias - lr * error.sum(0)
    return {"weight": weight, "bias": bias}


def ccvr(run: Recorded, per_class: int = 500, epochs: int = 10, lr: float = 0.05, batch: int = 128) -> Analysis:
    """Refit the head of the trained model on features that are drawn from what all clients' classes sum up to.

    Every client of the federation adds up its features under the final model, class by class; means and covariances of
    the pooled features follow from the sums exactly. `per_class` features of each class are drawn from a normal, and
    the network's last layer is trained further on them; the rest of the network stays as it is.
    """
    run.need_classes("ccvr")
    e = run.simulation
    w, buffers = e.deployed()
    views = e.setup.layout.views(w)
    names = {part: e.setup.of_last_layer(part) for part in ("weight", "bias")}
    if not set(names.values()) <= views.keys():
        raise UserError(f"ccvr trains the network's last layer anew; it must be an nn.Linear with a bias, {CALLED}")
    rng = stream(e.config.seed, "ccvr")
    pooled = moments(sums_over_clients(run, w, buffers, class_sums))
    x, y = virtual_features(pooled, per_class, rng)
    head = {part: views[name] for part, name in names.items()}
    head = refitted(head, x, y, epochs=epochs, lr=lr, batch=batch, rng=rng)
    calibrated = e.setup.layout.flatten(views | {names[part]: value for part, value in head.items()})
    before, after = (evaluate(e.model, model, buffers, e.test)[0] for model in (w, calibrated))
    classes = np.arange(e.dataset.classes)
    columns = {
        "class": classes.tolist(),
        "samples": pooled.n.tolist(),
        "before": before["per_class"],
        "after": after["per_class"],
    }

    def draw(*, theme: Theme) -> Figure:
        figure = new_figure(3.0, theme)
        axes = style_axes(figure.subplots(), theme)
        handles = []
        for number, scores in enumerate((before, after)):
            heights = [np.nan if a is None else 100 * a for a in scores["per_class"]]
            handles += axes.plot(classes, heights, **stroke(number, len(heights), theme))
        label_axes(axes, theme, "class", "test accuracy (%)")
        legend(figure, handles, ["before", "after"], theme)
        return figure

    return Analysis(
        "ccvr",
        "What a calibrated head gains",
        "Test accuracy of each class with the model as it was trained, and with its last layer refitted on features "
        "drawn from the clients' class means and covariances.",
        {"before": before["accuracy"], "after": after["accuracy"]},
        columns,
        draw,
    )
