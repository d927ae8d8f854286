"""FedDisco's bound (theorem 4.5) for a run's clients: which weights make it least, and what Disco's make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from fedbraid.analyses.analysis import Analysis
from fedbraid.analyses.discrepancy import discrepancies
from fedbraid.analyses.theorem import Bound, Constants
from fedbraid.config.registry import positive, whole
from fedbraid.report.style import SMALL, Theme, label_axes, new_figure, stroke, style_axes
from fedbraid.strands.disco import Disco, disco_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded


def bound(
    run: Recorded,
    metric: Literal["kl", "l1", "l2", "cosine"] = "kl",
    a: float = Disco.a,
    b: float = Disco.b,
    local_steps: int = Constants.local_steps,
    lr: float = Constants.lr,
    smoothness: float = Constants.smoothness,
    noise: float = Constants.noise,
    dissimilarity: float = Constants.dissimilarity,
    gap: float = Constants.gap,
    horizon: int = Constants.horizon,
    lam: float = Constants.lam,
    deviation: Literal["appendix", "theorem"] = Constants.deviation,
    steps: int = 400,
    descent: float = 0.005,
) -> Analysis:
    """The bound for the weights n_k, Disco's and the best ones, over all clients of the run.

    Sizes and label distributions are the run's. The other constants are not: no network's smoothness is known, and with
    a run's own learning rate and steps the theorem's condition seldom holds.
    """
    constants = Constants(local_steps, lr, smoothness, noise, dissimilarity, gap, horizon, lam, deviation)
    steps, descent = whole("steps", steps), positive("descent", descent)
    counts = run.simulation.clients.label_counts.cpu().double().numpy()
    n, d = counts.sum(1) / counts.sum(), discrepancies(metric, counts)
    theorem = Bound(n, d, constants)
    best, closed = theorem.least(), theorem.least_reformulated()
    disco = disco_weights(torch.from_numpy(n), torch.from_numpy(d), a, b).numpy()
    least = theorem.original(best)
    best_a, best_b = theorem.as_disco(least)

    path = [n]
    for _ in range(steps):
        path.append(theorem.descended(path[-1], 1, descent))
    forms = {
        "reformulated": [theorem.reformulated(p) for p in path],
        "original": [theorem.original(p) for p in path],
    }
    weights = {"sizes": n, "disco": disco, "reformulated": closed, "least": best}

    def draw(*, theme: Theme) -> Figure:
        figure = new_figure(3.4, theme)
        left, right = (style_axes(axes, theme) for axes in figure.subplots(1, 2))
        for k, (name, values) in enumerate(forms.items()):
            left.plot(np.array(values) - values[0], label=name, **stroke(k, len(values), theme))
        label_axes(left, theme, "step of gradient descent", "change of the bound")
        for k, (name, p) in enumerate({"n_k": n, "Disco": disco, "least bound": best}.items(), 2):
            right.plot(d, p, label=name, **stroke(k, len(n), theme) | {"linestyle": "", "markevery": 1})
        label_axes(right, theme, f"discrepancy d_k ({metric})", "weight p_k")
        for axes in (left, right):
            axes.legend(frameon=False, fontsize=SMALL, labelcolor=theme.ink)
        return figure

    return Analysis(
        "bound",
        "The bound of FedDisco's theorem 4.5",
        "Left: both forms of the bound fall together while gradient descent on the reformulated one moves the weights "
        "away from n_k. Right: the weights that make the bound least fall with a client's discrepancy, as Disco's do.",
        {key: theorem.original(p) for key, p in weights.items()} | {"a": best_a, "b": best_b},
        {"client": list(range(len(n))), "discrepancy": d.tolist()} | {key: p.tolist() for key, p in weights.items()},
        draw,
    )
