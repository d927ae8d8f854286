"""Tuning as part of a study: a recipe's grid is run, the best candidate is chosen by its rule, and the choice is kept.

    OUT/tuned/<key>.json     a choice: its grid, rule, every candidate's score, and the values chosen

A cell whose row and column have a grid waits until its candidates are finished: its own runs then have the chosen
values. The key of a choice is a digest of all that decides it (the cell's configuration, the grid, the rule), so cells,
columns and recipes that ask for the same choice share it, and a choice once made stays, however many seeds come later.
Candidates are runs like any other, found by their configuration; nothing is run twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from fedbraid.config.schema import put
from fedbraid.errors import UserError
from fedbraid.storage.files import write_json
from fedbraid.studies import run_records
from fedbraid.studies.cell_metrics import CellMetric, parse
from fedbraid.studies.cells import Cell
from fedbraid.studies.naming import AT, chosen, matching
from fedbraid.studies.recipe import Recipe, Tuning, TuningGrid
from fedbraid.studies.run_digest import digest
from fedbraid.studies.study_plan import Table

VALIDATED = "best(of='validation_accuracy')"
"""How candidates are scored by validation where the recipe says nothing."""


@dataclass(frozen=True)
class Candidate:
    """Values of a grid, and the run that tries them."""

    values: Mapping[str, Any]  # by dotted key
    cell: Cell


@dataclass(frozen=True)
class TunedChoice:
    """The outcome of tuning a cell."""

    values: Mapping[str, Any]  # chosen, by dotted key
    rule: str
    metric: str
    seeds: int
    scores: tuple[Mapping[str, Any], ...]  # of every candidate: its values, and its score, None where it diverged

    @property
    def words(self) -> str:
        """The choice in a sentence."""
        by = "the test set, as the paper did" if self.rule == "test" else "validation samples"
        seeds = f"{self.seeds} seed{'s' * (self.seeds > 1)}"
        return f"{value_words(self.values)}: the best of {len(self.scores)} candidates on {by} ({self.metric}, {seeds})"


def check_tuning(recipe: Recipe, made: Mapping[tuple[str, str], Cell]) -> None:
    """Refuse grids that give methods different budgets, that touch no cell, or whose candidates cannot be made."""
    tuning = recipe.tuning
    if tuning is None:
        return
    if not tuning.grids:
        raise UserError("tuning.grids is empty; give at least one grid, or leave tuning out")
    if tuning.seeds < 1:
        raise UserError(f"tuning.seeds must be 1 or more, not {tuning.seeds}")
    if recipe.calculation:
        raise UserError("tuning is for cells that are trained")
    if tuning.rule == "validation" and not 0 < tuning.validation < 1:
        raise UserError(f"tuning.validation must be a share of the training samples, not {tuning.validation:g}")
    rows, columns = ([line.name for line in lines] for lines in (recipe.rows, recipe.columns))
    for k, grid in enumerate(tuning.grids):
        chosen("row", grid.rows, rows)
        chosen("column", grid.columns, columns)
        for key, values in grid.values.items():
            if not isinstance(values, list) or not values:
                raise UserError(f"tuning.grids[{k}].values.{key} must be a list of values, not {values!r}")
    sizes = {k: len(_points(grid)) for k, grid in enumerate(tuning.grids)}
    if len({*sizes.values()}) > 1:
        told = ", ".join(f"grids[{k}] has {size}" for k, size in sizes.items())
        raise UserError(f"tuning gives methods different budgets: {told} candidates; give all grids as many")
    _score_metric(tuning, recipe)
    for cell in {cell.row: cell for cell in reversed(list(made.values())) if candidates(recipe, cell)}.values():
        tried = candidates(recipe, cell)  # one cell of each row: the others try the same values
        digests = {digest(one.cell.config) for one in tried if one.cell.config}  # makes them, or says what is wrong
        if len(digests) < len(tried):
            where = f"row {cell.row!r}, column {cell.column!r}"
            raise UserError(f"{where}: some values of tuning change nothing; the method's own text may have set them")


def candidates(recipe: Recipe, cell: Cell) -> list[Candidate]:
    """Return the candidates of a cell, in the grid's order; none where no grid is for it, or it does not exist."""
    tuning = recipe.tuning
    if tuning is None or cell.skip:
        return []
    grids = [grid for grid in tuning.grids if _among(cell.row, grid.rows) and _among(cell.column, grid.columns)]
    if not grids:
        return []
    held_out = {"evaluate.validation": tuning.validation} if tuning.rule == "validation" else {}
    return [
        Candidate(point, replace(_with_values(cell, point | held_out), trial=value_words(point)))
        for point in _points(grids[-1])
    ]


def value_words(values: Mapping[str, Any]) -> str:
    """Return values in words: `disco.a = 1.0, disco.b = 0.1`."""
    return ", ".join(f"{key.removeprefix('strands.')} = {value}" for key, value in values.items())


def tuned(table: Table, out: Path) -> Table:
    """Return the table with every choice that was made laid over its cells; the others wait."""
    recipe = table.recipe
    if recipe.tuning is None:
        return table
    made = {}
    for place, cell in table.cells.items():
        some = candidates(recipe, cell)
        choice = read_choice(out, key_of(recipe, cell, some)) if some else None
        if choice:
            made[place] = replace(_with_values(cell, choice.values), choice=choice.words)
        else:
            made[place] = replace(cell, waits_for=tuple(candidate.cell for candidate in some))
    return replace(table, cells=made)


def choose(table: Table, out: Path) -> list[TunedChoice]:
    """Make and keep the choices of the cells that wait and whose candidates are all finished; return them.

    Raises:
        UserError: all candidates of a cell diverged.
    """
    recipe, made = table.recipe, {}
    tuning = recipe.tuning
    for cell in table.cells.values():
        some = candidates(recipe, cell) if tuning and cell.waits_for else []
        if not tuning or not some or (key := key_of(recipe, cell, some)) in made:
            continue
        metric = _score_metric(tuning, recipe)
        scores = [_score(candidate, metric, tuning.seeds, out) for candidate in some]
        if any(score is None for score in scores):
            continue
        numbers = [score for score in scores if score is not None]
        best = _best(numbers, metric, cell)
        kept = tuple(
            {"values": dict(candidate.values), "score": score if isfinite(score) else None}
            for candidate, score in zip(some, numbers, strict=True)
        )
        made[key] = TunedChoice(some[best].values, tuning.rule, metric.text, tuning.seeds, kept)
        write_json(_path(out, key), asdict(made[key]) | {"cell": f"{recipe.name}: {AT.join(cell.place)}"})
    return [*made.values()]


def key_of(recipe: Recipe, cell: Cell, some: list[Candidate]) -> str:
    """Return a digest of what decides a choice: the cell's configuration, the values tried, and how they are scored."""
    tuning = recipe.tuning
    assert tuning is not None and cell.config is not None
    held_out = tuning.validation if tuning.rule == "validation" else 0.0
    how = [tuning.rule, held_out, _score_metric(tuning, recipe).text, tuning.seeds]
    parts = [digest(cell.config), [dict(candidate.values) for candidate in some], how]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def read_choice(out: Path, key: str) -> TunedChoice | None:
    """Return a choice that was made, or None.

    Raises:
        UserError: its file is damaged.
    """
    path = _path(out, key)
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        scores = tuple(dict(score) for score in told["scores"])
        return TunedChoice(dict(told["values"]), told["rule"], told["metric"], told["seeds"], scores)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a choice of tuning ({error}); delete it to choose again") from None


def _path(out: Path, key: str) -> Path:
    return out / "tuned" / f"{key}.json"


def _score_metric(tuning: Tuning, recipe: Recipe) -> CellMetric:
    text = tuning.metric or (VALIDATED if tuning.rule == "validation" else recipe.metric)
    metric = parse(text)
    if metric.given is not None or metric.analysis:
        raise UserError(f"tuning.metric {text!r} is not read from a candidate's own rounds")
    if tuning.rule == "validation" and not metric.of.startswith("validation_"):
        raise UserError(f"tuning by validation needs a metric of validation samples, such as {VALIDATED}, not {text}")
    return metric


def _score(candidate: Candidate, metric: CellMetric, seeds: int, out: Path) -> float | None:
    """The mean over the seeds; not finite where a run diverged, None where one is not finished."""
    config = candidate.cell.config
    assert config is not None
    records = [run_records.read(out, digest(config), seed) for seed in range(seeds)]
    values = [metric.read(record) for record in records if record is not None]
    if len(values) < seeds:
        return None
    numbers = [value if value is not None else float("nan") for value in values]
    return fmean(numbers)


def _best(scores: list[float], metric: CellMetric, cell: Cell) -> int:
    """The place of the best score, the first of equals."""
    there = [k for k, score in enumerate(scores) if isfinite(score)]
    if not there:
        raise UserError(f"{AT.join(cell.place)} cannot be tuned: no candidate has a score; give its grid other values")
    return max(there, key=lambda k: scores[k] if metric.higher_is_better else -scores[k])


def _points(grid: TuningGrid) -> list[dict[str, Any]]:
    return [dict(zip(grid.values, values, strict=True)) for values in product(*grid.values.values())]


def _with_values(cell: Cell, values: Mapping[str, Any]) -> Cell:
    settings = deepcopy(dict(cell.settings))
    for key, value in values.items():
        put(settings, key, value)
    return replace(cell, settings=settings)


def _among(name: str, patterns: tuple[str, ...]) -> bool:
    return any(matching(pattern, [name]) for pattern in patterns)
