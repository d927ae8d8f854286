"""A recipe: one table or figure of a paper, as a file that says what is run and what the paper found.

A table has rows and columns; a cell's runs are the recipe's settings with the column's and then the row's laid over
them, and `overrides` for cells that the paper tuned by themselves. Cells whose settings agree share their runs, within
a recipe and between recipes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Settings = Mapping[str, Any]
"""Keys of a run's configuration, nested as in its TOML file."""


@dataclass(frozen=True)
class Line:
    """A row or a column."""

    name: str
    set: Settings = field(default_factory=dict)
    metric: str = ""  # how its numbers are read; "" = as the recipe says
    label: str = ""  # what its numbers are, in words; "" = as the metric says
    x: float | None = None  # where it lies in a picture, if it stands for a number
    small: Settings = field(default_factory=dict)  # laid over its cells by --scale small, after the recipe's own
    note: str = ""


@dataclass(frozen=True)
class Override:
    """Settings of cells that differ from what their row and column say."""

    rows: tuple[str, ...] = ("*",)  # names or patterns
    columns: tuple[str, ...] = ("*",)
    set: Settings = field(default_factory=dict)
    skip: str = ""  # why these cells do not exist, if they do not


@dataclass(frozen=True)
class Claim:
    """A claim of a paper about its table, as differences of cells that should be above zero.

    A cell is written `row` (in every column of `columns`), or `row @ column`. Differences count in the metric's own
    direction: fewer rounds are better. With a margin, in the table's unit, the claim is "no worse by more than that".
    """

    says: str
    better: tuple[str, ...]
    than: tuple[str, ...]  # as many as `better`, or one for all of them
    columns: tuple[str, ...] = ("*",)
    margin: float = 0.0


@dataclass(frozen=True)
class FigureRequest:
    """A picture beside the table."""

    kind: Literal["curves", "line", "bars", "split"] = "curves"  # split: who holds what, a picture for each column
    of: str = "accuracy"  # curves: what is followed over the rounds
    rows: tuple[str, ...] = ("*",)
    columns: tuple[str, ...] = ("*",)
    x: str = "round"  # the axis' name; curves may also go by bytes, seconds or aggregations
    log_x: bool = False


@dataclass(frozen=True)
class FurtherDraw:
    """A further draw of data and cohorts, such as the authors' own, on which columns are run as well."""

    name: str  # "the authors' draw": put behind a column's name
    set: Settings = field(default_factory=dict)
    columns: tuple[str, ...] = ("*",)
    note: str = ""


@dataclass(frozen=True)
class TuningGrid:
    """Values that are tried, of cells by row and column."""

    values: Settings  # by dotted key a list: all combinations are tried
    rows: tuple[str, ...] = ("*",)
    columns: tuple[str, ...] = ("*",)


@dataclass(frozen=True)
class Tuning:
    """Hyper-parameters that the study chooses itself, with the same number of candidates for every method."""

    grids: tuple[TuningGrid, ...]
    rule: Literal["validation", "test"] = "validation"  # test: only where the paper did so; the report says it
    metric: str = ""  # by which candidates are scored; "" = the best validation accuracy, or the recipe's metric
    validation: float = 0.1  # share of the training samples that candidates are scored on, with rule = "validation"
    seeds: int = 1  # of each candidate


@dataclass(frozen=True)
class Recipe:
    """One table or figure."""

    name: str  # the file's: feddisco-table1
    paper: str  # feddisco, rfedavg, asd, fedskip or fedacd, or a title of your own
    item: str  # "Table 1"
    title: str
    metric: str  # best, last, mean_last(n=10), rounds_to(target=0.55) …; see `studies.cell_metrics`
    base: Settings
    columns: tuple[Line, ...]
    rows: tuple[Line, ...]
    label: str = ""  # what the metric's numbers are, in words; "" = as the metric says
    seeds: int = 3
    unit: Literal["%", ""] = "%"  # accuracies are shares in a run's log and per cent in papers
    digits: int = 2
    small: Settings = field(default_factory=dict)  # laid over every cell by --scale small
    overrides: tuple[Override, ...] = ()
    draws: tuple[FurtherDraw, ...] = ()  # beside the columns' own, which are fresh with each seed; see `studies.draws`
    tuning: Tuning | None = None
    numbers: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    """The paper's: row to column to [mean] or [mean, spread], in `unit`."""
    equivalence: float = 1.0
    """How far from the paper's number, in points of accuracy, ours still counts as the same: stated before any run."""
    compare: bool = True  # false: the paper's numbers are of other settings than ours, and no difference is taken
    claims: tuple[Claim, ...] = ()
    pictures: tuple[FigureRequest, ...] = ()
    readings: tuple[str, ...] = ()  # what is taken where the paper is silent, or says otherwise than its code
    calculation: str = ""  # cells are calculated by this function of `studies.calculations`, and nothing is trained
