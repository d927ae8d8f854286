"""Flatness of the loss around the global model: eigenvalues, trace and spectral density of its Hessian."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fedbraid.analyses import spectrum
from fedbraid.analyses.analysis import Analysis
from fedbraid.analyses.products import Loss
from fedbraid.analyses.products import hessian as matrix
from fedbraid.analyses.progress import counted
from fedbraid.config.registry import whole
from fedbraid.core.random import stream
from fedbraid.errors import UserError
from fedbraid.report.style import Theme, label_axes, new_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded


def hessian(
    run: Recorded, eigenvalues: int = 10, probes: int = 30, starts: int = 1, steps: int = 60, samples: int = 0
) -> Analysis:
    """The Hessian of the mean loss over all clients' training samples, at the model that is evaluated (ASD table 1).

    The loss is the cross-entropy (half the squared error for a regression) alone: no strand's terms, no weight decay,
    which would add itself to every eigenvalue. Images are not augmented. `samples` looks at so many of them, drawn at
    random, instead of all. The trace is a mean over `probes`, the density over `starts` of `steps` steps each.
    """
    eigenvalues, steps = whole("eigenvalues", eigenvalues), whole("steps", steps)
    probes, starts, samples = whole("probes", probes, 2), whole("starts", starts), whole("samples", samples, 0)
    loss = _loss(run, samples)
    seed = run.config.seed
    with counted("greatest eigenvalues: products") as done:
        top = spectrum.top(matrix(loss, done), eigenvalues, stream(seed, "hessian.top"))
    with counted("trace: products", probes) as done:
        trace = spectrum.trace(matrix(loss, done), probes, stream(seed, "hessian.trace"), top)
    with counted("density: products", starts * steps) as done:
        density = spectrum.density(matrix(loss, done), starts, steps, stream(seed, "hessian.density"), top)
    parameters = len(loss.at)

    def draw(*, theme: Theme) -> Figure:
        figure = new_figure(3.4, theme)
        axes = style_axes(figure.subplots(), theme)
        low, high = min(density.points.min(), 0.0), max(density.points.max(), top.values[0])
        width = (high - low) / 200
        at = np.linspace(low - 4 * width, high + 4 * width, 1200)
        heights, one = density.smoothed(at, width), 1 / (parameters * width * (2 * np.pi) ** 0.5)
        axes.semilogy(at, heights, color=theme.palette[0], linewidth=1.4)
        axes.set_ylim(0.1 * one, 5 * heights.max())  # from a tenth of one eigenvalue's peak
        axes.vlines(top.values, 0, 0.04, transform=axes.get_xaxis_transform(), color=theme.palette[1], linewidth=1.6)
        label_axes(axes, theme, "eigenvalue", "density")
        return figure

    return Analysis(
        "hessian",
        "The Hessian of the global loss",
        "How many eigenvalues (log scale) lie where; marks at the bottom are the greatest ones. The more of them near "
        "zero and the smaller the greatest, the flatter the minimum. Eigenvalues below zero tell of a saddle.",
        {
            "top": float(top.values[0]),
            "trace": trace.value,
            "trace_error": trace.error,
            "lowest": float(density.points.min()),
            "parameters": float(parameters),
        },
        {
            "part": ["top"] * len(top.values) + ["density"] * len(density.points),
            "eigenvalue": [*top.values.tolist(), *density.points.tolist()],
            "share": [1 / parameters] * len(top.values) + density.weights.tolist(),
        },
        draw,
    )


def _loss(run: Recorded, samples: int) -> Loss:
    e = run.simulation
    w, buffers = e.deployed()
    if not w.isfinite().all():
        raise UserError(f"the model of {run.path} is not finite, so it has no Hessian")
    index = e.clients.order
    if 0 < samples < len(index):
        drawn = stream(run.config.seed, "hessian.samples").permutation(len(index))[:samples]
        index = index[torch.from_numpy(np.sort(drawn)).to(index.device)]
    return Loss(e.model, w, buffers, e.clients.samples, index, e.dataset.task)
