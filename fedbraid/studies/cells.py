"""The cells of a recipe's table: what is run for each, and how its number is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from fedbraid.config.schema import Config
from fedbraid.core.strand import Strand
from fedbraid.errors import UserError
from fedbraid.studies.naming import Place, matching
from fedbraid.studies.overlay import laid
from fedbraid.studies.recipe import Line, Recipe, Settings
from fedbraid.studies.run_digest import config_of

ANALYZE = "analyze"
"""The settings' key that says which analyses are made of the finished run; no part of what the run is."""


@dataclass(frozen=True)
class Cell:
    """One number of a table."""

    row: str
    column: str
    settings: Settings  # as they are laid over one another
    metric: str
    label: str = ""  # what the number is, in words, if not those of the metric
    skip: str = ""  # why there is no such cell
    trial: str = ""  # of a candidate: the values that it tries, in words
    choice: str = ""  # what tuning chose for it, in words
    waits_for: tuple[Cell, ...] = field(default=(), repr=False)  # candidates of which tuning has not chosen yet
    calculation: str = field(default="", repr=False)
    own: tuple[type[Strand], ...] = field(default=(), repr=False)  # strands beyond FedBraid's

    @property
    def place(self) -> Place:
        return self.row, self.column

    @cached_property
    def config(self) -> Config | None:
        """The configuration of its runs, with seed 0; None where nothing is trained."""
        if self.skip or self.calculation:
            return None
        try:
            check_analyses(self.settings.get(ANALYZE, []))
            settings = {key: value for key, value in self.settings.items() if key != ANALYZE}
            return _config_of(json.dumps(settings, sort_keys=True), self.own)
        except UserError as error:
            raise UserError(f"row {self.row!r}, column {self.column!r}: {error}") from None

    @property
    def analyze(self) -> tuple[str, ...]:
        return tuple(self.settings.get(ANALYZE, ()))


# Columns that read the same runs by several metrics have the same settings.
@lru_cache(maxsize=8192)
def _config_of(settings: str, own: tuple[type[Strand], ...]) -> Config:
    return config_of(json.loads(settings), own)


def check_analyses(asked: Any) -> None:
    """Refuse what is no list of analyses, before anything is trained for them."""
    if not isinstance(asked, list) or not all(isinstance(text, str) for text in asked):
        raise UserError(f"{ANALYZE} must be a list of names, such as ['hessian'], not {asked!r}")
    if asked:
        from fedbraid.analyses import check  # which most studies do without

        for text in asked:
            check(text)


def cells(
    recipe: Recipe, *, small: bool = False, extra: Settings | None = None, own: tuple[type[Strand], ...] = ()
) -> dict[Place, Cell]:
    """Every cell, row by row; `extra` is laid over all of them. `own` are strands beyond FedBraid's."""
    if small and not recipe.small and not recipe.calculation:
        raise UserError(f"{recipe.name} has no [small] part, which --scale small would lay over its cells")
    made: dict[Place, Cell] = {}
    for row in recipe.rows:
        for column in recipe.columns:
            changed = [o for o in recipe.overrides if _among(row.name, o.rows) and _among(column.name, o.columns)]
            small_layers = recipe.small, column.small, row.small
            layers = [recipe.base, column.set, row.set, *(o.set for o in changed), *(small_layers if small else ())]
            made[row.name, column.name] = Cell(
                row.name,
                column.name,
                laid(*layers, extra or {}),
                row.metric or column.metric or recipe.metric,
                _label(recipe, row, column),
                next((o.skip for o in changed if o.skip), ""),
                calculation=recipe.calculation,
                own=own,
            )
    return made


def _label(recipe: Recipe, row: Line, column: Line) -> str:
    """A label is of the metric beside it, or of whatever is read where there is none."""
    for line in (row, column):
        if line.label or line.metric:
            return line.label
    return recipe.label


def _among(name: str, patterns: tuple[str, ...]) -> bool:
    return any(matching(pattern, [name]) for pattern in patterns)


def used_strands(some: Mapping[Place, Cell]) -> set[str]:
    """The strands that the cells' methods have."""
    return {name for cell in some.values() if cell.config for name in cell.config.strands}
