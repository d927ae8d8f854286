"""Cost: what accuracy was paid for it (FedSkip Table IV, ASD figure 11, rFedAvg figure 10), from the log alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbraid.analyses.analysis import Analysis, labelled
from fedbraid.report.curves import METRICS
from fedbraid.report.run_groups import common_metric, validated
from fedbraid.report.style import Theme, label_axes, legend, legend_height, new_figure, stroke, style_axes
from fedbraid.report.summaries import higher_is_better
from fedbraid.report.words import byte_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded

SPENT = "rounds", "aggregations", "bytes", "forward_samples", "seconds"

Columns = dict[str, list[Any]]


def spent(run: Recorded, metric: str) -> Columns:
    """Return the cost up to the end of each round, and the score there; None where it was not evaluated."""
    lines = run.rounds
    moved = [line["bytes_down"] + line["bytes_up"] for line in lines]
    added = {"bytes": moved} | {key: [line[key] for line in lines] for key in ("forward_samples", "seconds")}
    return {
        "rounds": [line["round"] for line in lines],
        "aggregations": [aggregations(run, line["round"]) for line in lines],
        **{key: np.cumsum(values).tolist() for key, values in added.items()},
        metric: [line[metric] for line in lines],
    }


def aggregations(run: Recorded, round: int) -> int:
    """Count the aggregations up to the end of each round: FedSkip does not aggregate in every one."""
    skip = run.config.strands.get("skip")
    if not skip:
        return round
    left_over = round == run.config.rounds and skip["final_aggregate"] and round % skip["every"] > 0
    return round // int(skip["every"]) + int(left_over)


def cost(runs: Sequence[Recorded], target: float = 0.0) -> Analysis:
    """Return the cost of each run in all, and until its score first reached `target` (0: `evaluate.target` of the run).

    Where samples are held out to validate on, it is their score that counts for the target. Bytes go down and up, over
    all clients; seconds are wall time. A score is an accuracy, or the loss of a regression.
    """
    metric = common_metric(runs)
    tables = {label: spent(run, metric) for label, run in labelled(runs).items()}
    quantities: dict[str, float | None] = {}
    for (label, table), run in zip(tables.items(), runs, strict=True):
        after = f"/{label}" if len(runs) > 1 else ""
        goal = target or run.config.evaluate.target
        judged = validated(run.rounds, metric) or metric
        place = _first([line.get(judged) for line in run.rounds], goal, higher_is_better(metric))
        for key in SPENT:
            quantities[f"{key}{after}"] = table[key][-1] if table[key] else None
            if goal:
                quantities[f"{key}_to_target{after}"] = None if place is None else table[key][place]
    columns: Columns = {"run": [label for label, table in tables.items() for _ in table["rounds"]]}
    columns |= {key: [v for table in tables.values() for v in table[key]] for key in (*SPENT, metric)}

    def draw(*, theme: Theme) -> Figure:
        return _drawn(tables, metric, theme)

    better = "higher" if higher_is_better(metric) else "lower"
    return Analysis(
        "cost",
        "What a score costs",
        f"A {better} line is better, and at the same height one further left is cheaper; methods change places from "
        "panel to panel where they save one thing and spend another.",
        quantities,
        columns,
        draw,
    )


def _first(scores: Sequence[float | None], goal: float, rising: bool) -> int | None:
    """Return the index of the first score that reaches the goal."""
    reached = (k for k, s in enumerate(scores) if s is not None and (s >= goal if rising else s <= goal))
    return next(reached, None)


def _drawn(tables: dict[str, Columns], metric: str, theme: Theme) -> Figure:
    figure = new_figure(4.6 + legend_height(list(tables)), theme)
    panels = figure.subplots(2, 2, sharey=True)
    most = max((table["bytes"][-1] for table in tables.values() if table["bytes"]), default=1)
    unit, size = byte_unit(most)
    scales = {"bytes": (size, f"data moved ({unit})"), "aggregations": (1, "aggregations")}
    scales |= {"forward_samples": (1e6, "forward passes (million samples)"), "seconds": (1, "seconds")}
    drawn = []
    for axes, (key, (scale, name)) in zip(panels.flat, scales.items(), strict=True):
        style_axes(axes, theme)
        for k, table in enumerate(tables.values()):
            known = [i for i, s in enumerate(table[metric]) if s is not None]
            x = [table[key][i] / scale for i in known]
            y = [table[metric][i] * (100 if metric == "accuracy" else 1) for i in known]
            (line,) = axes.plot(x, y, **stroke(k, len(x), theme))
            drawn.append(line)
        label_axes(axes, theme, name, METRICS[metric] if axes in panels[:, 0] else "")
    legend(figure, drawn[: len(tables)], list(tables), theme)
    return figure
