"""Features: what the last layer receives, client by client (rFedAvg figure 1 and equation 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedbraid.analyses.analysis import Analysis
from fedbraid.analyses.clients import answers
from fedbraid.config.registry import whole
from fedbraid.core.random import stream
from fedbraid.core.strand import Client
from fedbraid.core.tree import Tree
from fedbraid.report.series import Floats
from fedbraid.report.style import CLASS_COLOURS, SMALL, Theme, key_above, new_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded


def distances(means: Tensor) -> Tensor:
    """[pairs] the distance between the mean features [C, d] of every two clients: the MMD of rFedAvg's equation 2."""
    first, second = torch.triu_indices(len(means), len(means), offset=1, device=means.device)
    apart: Tensor = means[first] - means[second]
    return apart.square().sum(1).sqrt()


def features(run: Recorded, clients: int = 3, samples: int = 100) -> Analysis:
    """Of the penultimate features of the next round's clients' own samples, under the model that they receive and under
    the one that they have trained:

    mmd_before, mmd  the distance between clients' mean features, mean over pairs, before and after local training
    mmd_relative     the latter over the mean length of the mean features, which no rescaling of features changes

    The table and the picture are a t-SNE of some samples of the first few clients.
    """
    run.need_classes("features")
    clients, samples = whole("clients", clients), whole("samples", samples, least=2)
    round = run.next_round
    means = {
        "before": answers(run, round.received, round.received_buffers, mean_features)["mean"],
        "after": answers(run, round.models, round.buffers, mean_features)["mean"],
    }
    apart = {when: float(distances(m).mean()) if len(m) > 1 else None for when, m in means.items()}
    length = float(means["after"].norm(dim=1).mean())
    shown = _shown(run, clients, samples)
    columns: dict[str, list[Any]] = {"when": [], "client": [], "class": [], "x": [], "y": []}
    for when, models, buffers in (
        ("before", round.received, round.received_buffers),
        ("after", round.models, round.buffers),
    ):
        found = [_features(run, models[k], buffers[k], index) for k, index in shown.items()]
        flat = embedded(np.concatenate(found))
        for k, index in shown.items():
            columns["when"] += [when] * len(index)
            columns["client"] += [int(round.cohort.ids[k])] * len(index)
            columns["class"] += run.simulation.clients.samples.y[index].tolist()
        columns["x"] += flat[:, 0].tolist()
        columns["y"] += flat[:, 1].tolist()

    def draw(*, theme: Theme) -> Figure:
        return _drawn(columns, theme)

    return Analysis(
        "features",
        "Features of clients",
        "Each dot is a sample, its colour its class, its form its client (t-SNE of what the last layer receives). "
        "Where dots of one colour lie apart by form, clients see the same class differently.",
        {
            "mmd_before": apart["before"],
            "mmd": apart["after"],
            "mmd_relative": None if apart["after"] is None else apart["after"] / max(length, 1e-12),
        },
        columns,
        draw,
    )


def mean_features(c: Client) -> Tree:
    """The mean over a client's samples of what the last layer receives."""
    total = c.over_data(c.start, lambda out, b: {"sum": (out.features * b.mask[:, None]).sum(0)})
    return {"mean": total["sum"] / c.size}


def embedded(values: Floats) -> Floats:
    """[n, 2] a t-SNE of features [n, d]: the same values give the same picture."""
    from sklearn.manifold import TSNE

    if len(values) < 4:  # too few to have neighbours
        return np.pad(values[:, :2], ((0, 0), (0, max(0, 2 - values.shape[1]))))
    made: Floats = TSNE(perplexity=min(30.0, (len(values) - 1) / 3), init="pca", random_state=0).fit_transform(values)
    return made


def _shown(run: Recorded, clients: int, samples: int) -> dict[int, Tensor]:
    """Draw the samples of some clients, by their position in the cohort."""
    e, ids = run.simulation, run.next_round.cohort.ids
    chosen = {}
    for k in range(min(clients, len(ids))):
        own = e.clients.own(int(ids[k]))
        rng = stream(e.config.seed, "analysis/features", client=int(ids[k]))
        chosen[k] = own[torch.as_tensor(rng.permutation(len(own))[:samples], device=own.device)]
    return chosen


@torch.no_grad()
def _features(run: Recorded, w: Tensor, buffers: Tensor, index: Tensor) -> Floats:
    e = run.simulation
    values: Floats = e.model.predict(w, buffers, e.clients.samples.inputs(index)).features.double().cpu().numpy()
    return values


def _drawn(columns: dict[str, list[Any]], theme: Theme) -> Figure:
    figure = new_figure(3.9, theme)
    forms = ("o", "^", "s", "D", "v", "P", "X")
    when, client, label = (np.array(columns[key]) for key in ("when", "client", "class"))
    place = np.array([columns["x"], columns["y"]])
    names = {"before": "before local training", "after": "after local training"}
    for axes, (key, name) in zip(figure.subplots(1, 2), names.items(), strict=True):
        style_axes(axes, theme, frame=False, grid=False)
        for form, one in zip(forms * len(client), dict.fromkeys(client.tolist()), strict=False):
            here = (when == key) & (client == one)
            colours = [CLASS_COLOURS[int(c) % len(CLASS_COLOURS)] for c in label[here]]
            axes.scatter(*place[:, here], c=colours, marker=form, s=9, linewidths=0, label=f"client {one}")
        axes.set_title(name, fontsize=SMALL, color=theme.ink)
        axes.set_xticks([])
        axes.set_yticks([])
    handles, labels = axes.get_legend_handles_labels()
    drawn = figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=SMALL)
    for text, mark in zip(drawn.get_texts(), drawn.legend_handles, strict=True):
        text.set_color(theme.ink)
        mark.set(color=theme.muted)  # type: ignore[union-attr]  # a form stands for a client, whatever its colour
    _class_key(figure, sorted({int(c) for c in label}), theme)
    return figure


def _class_key(figure: Figure, classes: Sequence[int], theme: Theme) -> None:
    """A legend of the classes; those that share a colour share a line."""
    from matplotlib.patches import Patch

    sharing: dict[str, list[int]] = {}
    for one in classes:
        sharing.setdefault(CLASS_COLOURS[one % len(CLASS_COLOURS)], []).append(one)
    patches = [Patch(color=colour) for colour in sharing]
    labels = [f"class {', '.join(map(str, some))}" for some in sharing.values()]
    widest = max(map(len, labels))
    spaces = {"handlelength": 0.8, "columnspacing": 1.0}
    key_above(figure, patches, labels, theme, 18, max(1, min(len(labels), 80 // (widest + 5))), **spaces)
