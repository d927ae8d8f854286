"""Personal models: what clients gain from a model of their own (FedROD's personal heads, or a round of training)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from fedbraid.analyses.analysis import Analysis
from fedbraid.report.style import Theme, label_axes, legend, new_figure, stroke, style_axes
from fedbraid.training.evaluation import evaluate, per_client
from fedbraid.training.own_models import model_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded


def personal(run: Recorded) -> Analysis:
    """Accuracy of the next round's clients, each on its own test samples or on a test set with its labels; means:

    generic   of the model handed out
    tuned     of the models that local training makes of it
    personal  of the models that strands make of it with what they keep on each client, where one does
    """
    run.need_classes("personal")
    e, round = run.simulation, run.next_round
    ids = round.cohort.ids

    def own(client: int, w: Tensor, buffers: Tensor) -> float | None:
        metrics, correct = evaluate(e.model, w, buffers, e.test)
        found: float | None = per_client(metrics["per_class"], correct, e.partition, e.label_counts)["each"][client]
        return found

    w, buffers = e.deployed()
    metrics, correct = evaluate(e.model, w, buffers, e.test)
    everybody = per_client(metrics["per_class"], correct, e.partition, e.label_counts)["each"]
    found: dict[str, list[float | None]] = {
        "generic": [everybody[k] for k in ids],
        "tuned": [own(k, *trained) for k, *trained in zip(ids, round.models, round.buffers, strict=True)],
    }
    if e.chain.using("personalise"):
        found["personal"] = [own(k, *model_of(e, k, w, buffers)) for k in ids.tolist()]

    columns: dict[str, list[Any]] = {
        "client": ids.tolist(),
        "samples": e.label_counts[ids].sum(1).astype(np.int64).tolist(),
        **found,
    }

    def draw(*, theme: Theme) -> Figure:
        figure = new_figure(3.0, theme)
        axes, handles = style_axes(figure.subplots(), theme), []
        order = np.argsort([-1.0 if a is None else a for a in found["generic"]], kind="stable")
        for number, each in enumerate(found.values()):
            heights = [np.nan if (a := each[k]) is None else 100 * a for k in order]
            handles += axes.plot(heights, **stroke(number, len(heights), theme))
        label_axes(axes, theme, "clients, worst served by the model handed out first", "accuracy on its own data (%)")
        legend(figure, handles, list(found), theme)
        return figure

    return Analysis(
        "personal",
        "What clients gain from a model of their own",
        "Each client's accuracy with the model that everybody gets, with what a round of local training makes of it, "
        "and with what strands keep for the client. Above the first line it is worth having.",
        {name: _mean(each) for name, each in found.items()},
        columns,
        draw,
    )


def _mean(each: list[float | None]) -> float | None:
    known = [a for a in each if a is not None]
    return float(np.mean(known)) if known else None
