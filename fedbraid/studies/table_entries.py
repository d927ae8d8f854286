"""A recipe's table as data: each cell's numbers beside the paper's, in the unit in which both are shown."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isclose, isfinite, isnan, nan
from statistics import fmean, stdev

from fedbraid.config.terms import terms
from fedbraid.studies.cell_evidence import Equivalence, equivalence
from fedbraid.studies.cell_metrics import UNNAMED, CellMetric, parse
from fedbraid.studies.claims import POINTS, Finding, Sample, judged
from fedbraid.studies.key_labels import key_words
from fedbraid.studies.naming import AT, Place, pairs
from fedbraid.studies.recipe import Claim, Recipe
from fedbraid.studies.round_series import aggregations, course
from fedbraid.studies.run_records import Record
from fedbraid.studies.table_results import CellResult, Results

UNTIL: dict[str, Callable[[Record], float]] = {
    "rounds_to": lambda record: record.rounds[-1],
    "aggregations_to": lambda record: aggregations(record)[-1],
    "bytes_to": lambda record: record.totals["bytes_down"] + record.totals["bytes_up"],
    "seconds_to": lambda record: record.totals["seconds"],
}
"""Metrics that wait for a target, and what a run that never reached it had spent at its end."""


@dataclass(frozen=True)
class Number:
    """A mean and its spread."""

    mean: float  # inf: never reached, nan: diverged
    std: float | None = None

    @property
    def whisker(self) -> float:
        """The length of its whisker. One seed has no spread, which is not one of 0: NaN is not drawn."""
        return nan if self.std is None else self.std


@dataclass(frozen=True)
class TableEntry:
    """A cell as it is shown."""

    row: str
    column: str
    metric: CellMetric
    values: Mapping[int, float]  # by seed
    missing: tuple[int, ...]
    without: tuple[int, ...]  # seeds that were run and have no such number
    skipped: str
    paper: Number | None
    scale: float  # from the log's numbers to the shown ones
    refused: str = ""  # why it cannot be run as it is asked for
    comparable: bool = True  # run with the paper's settings
    margin: float = 1.0  # how far from the paper's number an accuracy of ours still counts as the same
    digest: str = ""
    lost: Mapping[int, int] = field(default_factory=dict)  # from which round on runs were not finite, by seed

    @property
    def place(self) -> Place:
        return self.row, self.column

    @property
    def share(self) -> bool:
        return self.metric.percent != 1.0

    @property
    def reached(self) -> list[float]:
        """The numbers that are there. A target that was never reached gives none."""
        return [value for value in self.values.values() if value != inf]

    @property
    def never(self) -> int:
        """The number of runs that never reached a target."""
        return sum(value == self.metric.never for value in self.values.values())

    @property
    def ours(self) -> Number | None:
        """Mean and sample standard deviation over the seeds; a diverged run cannot hide in a mean."""
        if not self.values:
            return None
        if not self.reached:
            return Number(inf)
        lost = any(map(isnan, self.reached))
        return Number(fmean(self.reached), stdev(self.reached) if len(self.reached) > 1 and not lost else None)

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's. A mean over only those runs that reached the target is no match for the paper's."""
        ours, paper = self.ours, self.paper
        if not self.comparable or ours is None or paper is None or len(self.reached) < len(self.values):
            return None
        apart = ours.mean - paper.mean
        return apart if isfinite(apart) else None

    @property
    def equivalence(self) -> Equivalence | None:
        """The equivalence of a level of accuracy with the paper's; None where there is nothing to compare."""
        is_level = self.metric.higher_is_better and unit_of(self.metric, self.scale) == POINTS
        if not is_level or self.difference is None or self.paper is None:
            return None
        return equivalence([*self.values.values()], self.paper.mean, self.margin)

    @property
    def beyond_spreads(self) -> bool:
        """True if the difference is larger than both standard deviations together; an unknown one counts as none."""
        spreads = [number.std for number in (self.ours, self.paper) if number and number.std is not None]
        return self.difference is not None and bool(spreads) and abs(self.difference) > sum(spreads)


def entries(recipe: Recipe, results: Results) -> dict[Place, TableEntry]:
    """Every cell, in the recipe's order."""
    comparable = recipe.compare and not results.variant
    return {place: _entry(recipe, cell, comparable) for place, cell in results.cells.items()}


def findings(recipe: Recipe, results: Results) -> list[Finding]:
    """The recipe's claims, tested."""
    table = entries(recipe, results)
    samples = {
        place: _sample(entry, results.cells[place])
        for place, entry in table.items()
        if not entry.skipped or entry.missing  # the paper has it, though its data is not here
    }
    rows, columns = [row.name for row in recipe.rows], [column.name for column in recipe.columns]
    return [
        replace(judged(claim, samples, rows, columns), in_paper=_in_paper(claim, table, pairs(claim, rows, columns)))
        for claim in recipe.claims
    ]


def _in_paper(
    claim: Claim, table: Mapping[Place, TableEntry], compared: Sequence[tuple[Place, Place]]
) -> tuple[int, int]:
    """Count the pairs of the paper's own numbers that are on the side that it claims, and all pairs that it gives."""
    given = [(table[one], table[other]) for one, other in compared]
    apart = [
        (one.paper.mean - other.paper.mean) * (1 if one.metric.higher_is_better else -1)
        for one, other in given
        if one.paper and other.paper
    ]
    on_side = [by + claim.margin > 0 or (claim.margin > 0 and isclose(by, -claim.margin)) for by in apart]
    return sum(on_side), len(on_side)


def commands(recipe: Recipe, results: Results, call: str = "") -> list[str]:
    """Return the commands that would run the missing cells: one command for all of them, or one for each row.

    `call` is what `study run` is given to find the recipe, its strands and its runs, if that is more than its name.
    """
    wanted = {
        place: cell for place, cell in results.cells.items() if cell.missing and not cell.skipped and not cell.refused
    }
    options = [f"--seeds {len(results.seeds)}"] if len(results.seeds) != recipe.seeds else []
    called = call or shlex.quote(recipe.name)
    begin = " ".join(["fedbraid study run", called, *filter(None, [results.variant]), *options])
    there = [place for place, cell in results.cells.items() if not cell.skipped and not cell.refused]
    if set(there) == set(wanted):
        return [f"{begin} --resume"] if wanted else []
    chosen: list[str] = []
    for row in dict.fromkeys(row for row, _ in wanted):
        mine = [place for place in wanted if place[0] == row]
        whole = len(mine) == sum(place[0] == row for place in there)
        cells = [row] if whole else [AT.join(place) for place in mine]
        chosen.append(" ".join([begin, *[f"--only {shlex.quote(cell)}" for cell in cells], "--resume"]))
    return chosen


def _entry(recipe: Recipe, cell: CellResult, comparable: bool) -> TableEntry:
    metric = parse(cell.metric)
    metric = replace(metric, label=cell.label or _words(metric, cell))
    scale = metric.percent if recipe.unit == "%" else 1.0
    given = recipe.numbers.get(cell.row, {}).get(cell.column)
    return TableEntry(
        row=cell.row,
        column=cell.column,
        metric=metric,
        values={seed: scale * value for seed, value in sorted(cell.values.items())},
        missing=cell.missing,
        without=cell.without,
        skipped=cell.skipped,
        paper=Number(given[0], given[1] if len(given) > 1 else None) if given else None,
        scale=scale,
        refused=cell.refused,
        comparable=comparable,
        margin=recipe.equivalence,
        digest=next((record.digest for record in cell.records.values()), ""),
        lost={seed: first for seed, record in sorted(cell.records.items()) if (first := _lost_from(record))},
    )


def _lost_from(record: Record) -> int:
    """The round from which on the model was not finite until the end; 0 if it is."""
    finite = record.series["finite"]
    kept = max((k for k, is_finite in enumerate(finite) if is_finite), default=-1)
    return 0 if kept == len(finite) - 1 else record.rounds[kept + 1]


def _words(metric: CellMetric, cell: CellResult) -> str:
    """A mean over more rounds than were evaluated is one of all of them; one that was not has the score before it."""
    logged = [
        number
        for record in cell.records.values()
        for number, value in zip(record.rounds, record.series.get(metric.of, ()), strict=False)
        if value is not None and number <= metric.until
    ]
    if logged and (found := max(logged)) < metric.until:
        asked = f"after round {metric.until}"
        return metric.label.replace(asked, f"after round {found} (the last evaluated by round {metric.until})")
    evaluated = max((len(course(record, metric.of)) for record in cell.records.values()), default=0)
    if not 0 < evaluated < metric.rounds:
        return metric.label
    return metric.label.replace(f"the last {metric.rounds} evaluated", f"all {evaluated} evaluated")


def _sample(entry: TableEntry, cell: CellResult) -> Sample:
    """For the claims. Only of a run that waits for a target is known what infinity stands for."""
    name, unit = terms(entry.metric.text, "a metric")[0][0], unit_of(entry.metric, entry.scale)
    spent = UNTIL.get(name)
    never = {seed: cell.records[seed] for seed, value in entry.values.items() if value == inf and spent}
    return Sample(
        {seed: nan if value == inf and seed not in never else value for seed, value in entry.values.items()},
        entry.metric.higher_is_better,
        unit,
        counted=unit == POINTS or name in {*UNTIL, "speedup"},
        spent={seed: (spent(record), len(record.rounds)) for seed, record in never.items() if spent},
        no_value=bool(entry.without),
    )


def unit_of(metric: CellMetric, scale: float) -> str:
    """Return the unit of a difference of two of its numbers."""
    if metric.percent != 1.0:
        return {1.0: "", 100.0: POINTS}.get(scale, "points²")
    name, _ = terms(metric.text, "a metric")[0]
    if name in ("skew", "speedup"):
        return ""
    known = {"rounds_to": "rounds", "aggregations_to": "aggregations", "bytes_to": "bytes", "seconds_to": "s"}
    known |= {"bytes": "bytes", "bytes_per_round": "bytes", "seconds": "s", "seconds_per_round": "s"}
    words = key_words(metric.of) if metric.of else metric.label
    return known.get(name, "" if words == UNNAMED else f"in {words}")
