"""The comparison table: as data first, then for a terminal, for Markdown and as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

from fedbraid.core.metrics import METRICS
from fedbraid.report.run_groups import RunRecord, common_metric, further_metrics, validated
from fedbraid.report.summaries import by_method, higher_is_better, spread
from fedbraid.report.words import NOTHING, amount, listed, percent, printable, score

if TYPE_CHECKING:
    from rich.table import Table as RichTable

BEST_MARK = "*"


@dataclass(frozen=True)
class Column:
    key: str
    title: str


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | None = None
    std: float | None = None
    best: bool = False

    @property
    def marked(self) -> str:
        return self.text + BEST_MARK if self.best else self.text


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...]


def comparison(records: Sequence[RunRecord], target: float | None = None, remarks: Sequence[str] = ()) -> Table:
    """One row per method, numbers averaged over its seeds. `remarks` come before what the columns mean."""
    methods = by_method(records, target)
    metric = common_metric(records)
    unit = " (%)" if metric == "accuracy" else " loss"
    scores = {"last": "last", "best": "best", "mean_last5": "last 5"}
    held_out = validated((entry for record in records for entry in record.rounds), metric) is not None
    if held_out:
        scores |= {"chosen": "chosen", "chosen_validation": "validation"}
    columns = [Column("method", "method")] + [Column(key, title + unit) for key, title in scores.items()]
    cells = [[Cell(label) for label in methods]]
    cells += [_score_cells([method.get(key, spread(())) for method in methods.values()], metric) for key in scores]
    further = further_metrics(entry for record in records for entry in record.rounds)
    columns += [Column(name, METRICS[name].title_with_unit) for name in further]
    cells += [_score_cells([method.get(name, spread(())) for method in methods.values()], name) for name in further]
    if target is not None:
        goal = percent(target) if metric == "accuracy" else f"loss {target:g}"
        columns.append(Column("rounds_to_target", f"rounds to {goal}"))
        cells.append([_target_cell(method["rounds_to_target"]) for method in methods.values()])
    columns += [Column("megabytes", "MB"), Column("seconds", "s")]
    cells.append([_plain_cell(_megabytes(method)) for method in methods.values()])
    cells.append([_plain_cell(_rounded(method["seconds"]["mean"])) for method in methods.values()])
    rows = tuple(zip(*cells, strict=True))
    notes = _notes(rows, list(methods.values()), target, further, _about_validation(target) if held_out else ())
    return Table(tuple(columns), rows, (*remarks, *notes))


def to_rich(table: Table) -> RichTable:
    """For a terminal. Cells are Text, not markup: a label in square brackets is only a label."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    notes = Text("\n".join(["", *table.notes]))
    drawn = RichTable(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
        padding=(0, 1) if len(table.columns) <= 8 else 0,  # so that many columns fit a terminal of 80 columns too
        caption=notes,
        caption_justify="left",
    )
    for index, column in enumerate(table.columns):
        # The one long title takes two lines, so that a terminal of 80 columns keeps each number in one.
        title = Text(column.title.replace("rounds to ", "rounds to\n"))
        drawn.add_column(title, justify="right" if index else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*[Text(printable(cell.marked), style="bold" if cell.best else "") for cell in row])
    return drawn


def to_markdown(table: Table) -> str:
    lines = [
        markdown_row([literal(column.title) for column in table.columns]),
        markdown_row(["---"] + ["---:"] * (len(table.columns) - 1)),
        *[markdown_row([_markdown_cell(cell) for cell in row]) for row in table.rows],
        "",
        *[f"- {literal(note)}" for note in table.notes],
    ]
    return "\n".join(lines) + "\n"


def to_json(table: Table) -> dict[str, Any]:
    """Plain data that strict JSON can hold: what is not finite becomes None, its text still says `diverged`."""
    return {
        "columns": [{"key": column.key, "title": column.title} for column in table.columns],
        "rows": [
            {"method": row[0].text}
            | {column.key: _json_cell(cell) for column, cell in zip(table.columns[1:], row[1:], strict=True)}
            for row in table.rows
        ],
        "notes": list(table.notes),
    }


def _rounded(seconds: float) -> float:
    """Timings are noisy: two digits say enough."""
    return float(f"{seconds:.2g}")


def _score_cells(spreads: Sequence[Mapping[str, Any]], metric: str) -> list[Cell]:
    cells = [Cell(score(item["mean"], metric, item["std"]), item["mean"], item["std"]) for item in spreads]
    ranked = [cell.value for cell in cells if cell.value is not None and isfinite(cell.value)]
    if len(cells) < 2 or not ranked:
        return cells
    best = score(max(ranked) if higher_is_better(metric) else min(ranked), metric)
    # Equal as printed is equal: a reader must not see two same numbers of which one is "better".
    return [replace(cell, best=score(cell.value, metric) == best) for cell in cells]


def _target_cell(reached: Mapping[str, Any]) -> Cell:
    if not reached["reached"]:
        return Cell(NOTHING)
    if reached["of"] == 1:
        return Cell(f"{reached['mean']:.0f}", reached["mean"])
    some = f" ({reached['reached']}/{reached['of']})" if reached["reached"] < reached["of"] else ""
    return Cell(f"{reached['mean']:.1f}{some}", reached["mean"], reached["std"])


def _megabytes(method: Mapping[str, Any]) -> float:
    return float(method["bytes_down"]["mean"] + method["bytes_up"]["mean"]) / 1e6


def _plain_cell(value: float) -> Cell:
    return Cell(amount(value), value)


def _about_validation(target: float | None) -> list[str]:
    notes = ["chosen: on the test set, in the round that is best on validation samples; validation: on those, there"]
    return notes if target is None else [*notes, "rounds to the target: on validation samples, where some are held out"]


def _notes(
    rows: Sequence[Sequence[Cell]],
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


def _json_cell(cell: Cell) -> dict[str, Any]:
    data: dict[str, Any] = {"text": cell.text, "value": _finite(cell.value)}
    if cell.std is not None:
        data["std"] = _finite(cell.std)
    if cell.best:
        data["best"] = True
    return data


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _markdown_cell(cell: Cell) -> str:
    return f"**{literal(cell.text)}**{literal(BEST_MARK)}" if cell.best else literal(cell.text)


def markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def literal(text: str) -> str:
    """Backslashes before all that Markdown or the HTML inside it would read as more than a letter."""
    return re.sub(r"([\\`*_{}\[\]<>|~#&$!])", r"\\\1", printable(text))
