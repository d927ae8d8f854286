"""Results of a recipe's table: each cell's numbers, and the records that they were read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedbraid.config.schema import Config
from fedbraid.report.words import listed
from fedbraid.studies import run_records
from fedbraid.studies.calculations import CALCULATIONS
from fedbraid.studies.cell_metrics import parse
from fedbraid.studies.cells import Cell
from fedbraid.studies.run_digest import digest
from fedbraid.studies.run_records import Record
from fedbraid.studies.study_plan import Table, missing_data


@dataclass(frozen=True)
class CellResult:
    """A cell of the table, as far as it was run."""

    row: str
    column: str
    settings: Config | None  # of its runs (seed 0), every default written out; None where nothing is trained
    metric: str  # how `values` were read; `metrics.parse` says in words, in which direction, and whether it is a share
    values: Mapping[int, float] = field(default_factory=dict)
    """By seed, as they are in the log (a share is 0.68, not 68). inf: the target was never reached; nan: diverged."""
    records: Mapping[int, Record] = field(default_factory=dict)  # by seed; none where nothing is trained
    missing: tuple[int, ...] = ()  # seeds that were not run yet, or not with the analyses that the metric reads
    without: tuple[int, ...] = ()  # seeds that were run, and whose record lacks what the metric reads
    label: str = ""  # what `values` are, in words, if not those of the metric
    skipped: str = ""  # why the cell is not there: the paper has none, or its data is not here
    refused: str = ""  # why its runs cannot be made as they are asked for, if that was tried
    choice: str = ""  # what tuning chose for it, in words


@dataclass(frozen=True)
class Results:
    """The table. `variant` says how it differs from the recipe's: `--scale small --rounds 5`, or nothing."""

    cells: Mapping[tuple[str, str], CellResult]  # by row and column, in the recipe's order
    seeds: tuple[int, ...]
    variant: str = ""


def gathered(
    table: Table, out: Path, data_dir: Path | None = None, refused: Mapping[str, str] | None = None
) -> Results:
    """Gather a table's numbers from the records under `out`. `refused` has, by digest, why runs cannot be made."""
    cells = {place: _cell(cell, table, out, data_dir, refused or {}) for place, cell in table.cells.items()}
    return Results(cells, table.seeds, str(table.changes))


def why_empty(table: Table, found: Results) -> str:
    """Say what the finished runs lack where no cell has a number; nothing where one has, or where none is finished."""
    runs = {(record.digest, record.seed) for cell in found.cells.values() for record in cell.records.values()}
    if not runs or any(cell.values for cell in found.cells.values()):
        return ""
    told = f"{len(runs)} of its runs {'is' if len(runs) == 1 else 'are'} finished, but "
    analyses = dict.fromkeys(
        text
        for place, cell in found.cells.items()
        for text in table.cells[place].analyze
        if not all(record.has([text]) for record in cell.records.values())
    )
    if analyses:
        what = "analysis" if len(analyses) == 1 else "analyses"
        return f"{told}without what its numbers are read from, the {what} {listed([*analyses])}"
    metrics = dict.fromkeys(cell.metric for cell in found.cells.values() if cell.without)
    if metrics:
        return f"{told}their log has no value of {listed([*metrics])}"
    return f"{told}not those that their numbers are measured by"


def _cell(cell: Cell, table: Table, out: Path, data_dir: Path | None, refused: Mapping[str, str]) -> CellResult:
    config, seeds = cell.config, table.seeds
    if cell.skip:
        return CellResult(cell.row, cell.column, None, cell.metric, label=cell.label, skipped=cell.skip)
    if config is None:
        calculate = CALCULATIONS[cell.calculation]
        values = {seed: calculate(cell.settings, seed) for seed in seeds}
        return CellResult(cell.row, cell.column, None, cell.metric, values, label=cell.label)
    mine = digest(config)
    there = (
        {}
        if cell.waits_for
        else {seed: record for seed in seeds if (record := run_records.read(out, mine, seed)) is not None}
    )
    values = {seed: value for seed, record in there.items() if (value := _value(cell, record, table, out)) is not None}
    waits = parse(cell.metric).given is not None  # for another row's run
    whole = [seed for seed in there if there[seed].has(cell.analyze) and not waits]
    without = tuple(seed for seed in whole if seed not in values)
    missing = tuple(seed for seed in seeds if seed not in values and seed not in without)
    skipped = "" if there else missing_data(config, data_dir)
    return CellResult(
        *cell.place,
        config,
        cell.metric,
        values,
        there,
        missing,
        without,
        cell.label,
        skipped,
        refused.get(mine, "") if missing else "",
        cell.choice,
    )


def _value(cell: Cell, record: Record, table: Table, out: Path) -> float | None:
    metric = parse(cell.metric)
    if metric.given is None:
        return metric.read(record)
    beside = table.cells[metric.beside, cell.column].config
    other = run_records.read(out, digest(beside), record.seed) if beside else None
    return metric.given(other).read(record) if other else None
