"""The table that compares methods: a row for each, averaged over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from fedbraid.core.metrics import METRICS
from fedbraid.report.run_groups import RunRecord, common_metric, further_metrics, validated
from fedbraid.report.summaries import by_method, higher_is_better, spread
from fedbraid.report.tables import BEST_MARK, TableCell, TableColumn, TableData
from fedbraid.report.words import NOTHING, amount, listed, percent, score


def comparison(records: Sequence[RunRecord], target: float | None = None, remarks: Sequence[str] = ()) -> TableData:
    """One row per method, numbers averaged over its seeds. `remarks` come before what the columns mean."""
    methods = by_method(records, target)
    metric = common_metric(records)
    unit = " (%)" if metric == "accuracy" else " loss"
    scores = {"last": "last", "best": "best", "mean_last5": "last 5"}
    held_out = validated((entry for record in records for entry in record.rounds), metric) is not None
    if held_out:
        scores |= {"chosen": "chosen", "chosen_validation": "validation"}
    columns = [TableColumn("method", "method")] + [TableColumn(key, title + unit) for key, title in scores.items()]
    cells = [[TableCell(label) for label in methods]]
    cells += [_score_cells([method.get(key, spread(())) for method in methods.values()], metric) for key in scores]
    further = further_metrics(entry for record in records for entry in record.rounds)
    columns += [TableColumn(name, METRICS[name].title_with_unit) for name in further]
    cells += [_score_cells([method.get(name, spread(())) for method in methods.values()], name) for name in further]
    if target is not None:
        goal = percent(target) if metric == "accuracy" else f"loss {target:g}"
        columns.append(TableColumn("rounds_to_target", f"rounds to {goal}"))
        cells.append([_target_cell(method["rounds_to_target"]) for method in methods.values()])
    columns += [TableColumn("megabytes", "MB"), TableColumn("seconds", "s")]
    cells.append([_plain_cell(_megabytes(method)) for method in methods.values()])
    cells.append([_plain_cell(_rounded(method["seconds"]["mean"])) for method in methods.values()])
    rows = tuple(zip(*cells, strict=True))
    notes = _notes(rows, list(methods.values()), target, further, _about_validation(target) if held_out else ())
    return TableData(tuple(columns), rows, (*remarks, *notes))


def _rounded(seconds: float) -> float:
    """Timings are noisy: two digits say enough."""
    return float(f"{seconds:.2g}")


def _score_cells(spreads: Sequence[Mapping[str, Any]], metric: str) -> list[TableCell]:
    cells = [TableCell(score(item["mean"], metric, item["std"]), item["mean"], item["std"]) for item in spreads]
    ranked = [cell.value for cell in cells if cell.value is not None and isfinite(cell.value)]
    if len(cells) < 2 or not ranked:
        return cells
    best = score(max(ranked) if higher_is_better(metric) else min(ranked), metric)
    # Equal as printed is equal: a reader must not see two same numbers of which one is "better".
    return [replace(cell, best=score(cell.value, metric) == best) for cell in cells]


def _target_cell(reached: Mapping[str, Any]) -> TableCell:
    if not reached["reached"]:
        return TableCell(NOTHING)
    if reached["of"] == 1:
        return TableCell(f"{reached['mean']:.0f}", reached["mean"])
    some = f" ({reached['reached']}/{reached['of']})" if reached["reached"] < reached["of"] else ""
    return TableCell(f"{reached['mean']:.1f}{some}", reached["mean"], reached["std"])


def _megabytes(method: Mapping[str, Any]) -> float:
    return float(method["bytes_down"]["mean"] + method["bytes_up"]["mean"]) / 1e6


def _plain_cell(value: float) -> TableCell:
    return TableCell(amount(value), value)


def _about_validation(target: float | None) -> list[str]:
    notes = ["chosen: on the test set, in the round that is best on validation samples; validation: on those, there"]
    return notes if target is None else [*notes, "rounds to the target: on validation samples, where some are held out"]


def _notes(
    rows: Sequence[Sequence[TableCell]],
    methods: Sequence[Mapping[str, Any]],
    target: float | None,
    further: Sequence[str],
    about_validation: Sequence[str],
) -> list[str]:
    fewest, most = (pick(method["seeds"] for method in methods) for pick in (min, max))
    notes = []
    if any(cell.best for row in rows for cell in row):
        notes.append(f"{BEST_MARK} best of its column")
    if most == 1:
        notes.append("one seed: no spread known")
    else:
        notes.append(f"mean ± standard deviation over {most if fewest == most else f'{fewest} to {most}'} seeds")
    notes.append("last: the last evaluated round; last 5: mean of the last five evaluated rounds")
    notes += about_validation
    if further:
        notes.append(f"{listed([METRICS[name].title for name in further])}: in the last evaluated round")
    if target is not None:
        never = f"{NOTHING}: never reached"
        notes.append(f"{never}; (2/3): only two of three seeds reached it, mean over these" if most > 1 else never)
    notes.append("MB: moved down and up, all clients together; MB and s are per run")
    return notes
