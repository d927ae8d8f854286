"""The pictures that a recipe asks for, with the numbers that there are for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import isfinite, nan

from fedbraid.report.looks import Look, looks
from fedbraid.report.series import Curve
from fedbraid.studies.courses import course_of
from fedbraid.studies.naming import Place, chosen
from fedbraid.studies.recipe import FigureRequest, Recipe
from fedbraid.studies.table_entries import Number, TableEntry
from fedbraid.studies.table_results import Results


@dataclass(frozen=True)
class FigureData:
    """A picture's cells: rows are lines or bars, and columns are panels, or places on the axis."""

    picture: FigureRequest
    rows: tuple[str, ...]  # of those drawn, in the recipe's order
    columns: tuple[str, ...]
    entries: Mapping[Place, TableEntry]
    courses: Mapping[Place, Curve]
    x: Mapping[str, float]  # of columns that stand for a number
    order: Mapping[str, int]  # of rows that may be drawn
    digits: int

    @property
    def shown(self) -> list[TableEntry]:
        return [self.entries[row, column] for row in self.rows for column in self.columns if self.has((row, column))]

    def has(self, place: Place) -> bool:
        return place in self.courses if self.picture.kind == "curves" else isfinite(self.ours(place).mean)

    def ours(self, place: Place) -> Number:
        """NaN where there is no number."""
        found = self.entries[place].ours
        return found if found and isfinite(found.mean) else Number(nan)

    def paper(self, place: Place) -> Number:
        """NaN too where ours was run with other settings: a mark beside it would compare what cannot be compared."""
        entry = self.entries[place]
        found = entry.paper if entry.comparable else None
        return found if found and isfinite(found.mean) else Number(nan)

    @property
    def has_paper(self) -> bool:
        return any(isfinite(self.paper((row, column)).mean) for row in self.rows for column in self.columns)

    @property
    def looks(self) -> dict[str, Look]:
        """The looks of rows, the same in all pictures of one order."""
        return looks([*self.order])

    def panel(self, column: str) -> list[Curve]:
        """The courses that are drawn in a column's panel."""
        return [self.courses[row, column] for row in self.rows if (row, column) in self.courses]

    @property
    def label(self) -> str:
        """The label of its numbers: the words that the cells' metrics begin with, where they differ."""
        labels = zip(*[self.named(column).split() for column in self.columns], strict=False)
        return (
            " ".join(words[0] for words in takewhile(lambda words: len(set(words)) == 1, labels)) or "table's numbers"
        )

    def named(self, column: str) -> str:
        """Return the label of a column's numbers; nothing where rows differ in it."""
        words = dict.fromkeys(
            f"{entry.metric.label}{' (%)' if entry.scale == 100.0 else ''}"
            for entry in self.shown
            if entry.column == column
        )
        return "".join(words) if len(words) == 1 else ""


def figure_data(
    picture: FigureRequest, recipe: Recipe, results: Results, entries: Mapping[Place, TableEntry]
) -> FigureData:
    """Rows and columns of which nothing can be drawn are left out."""
    rows = [row.name for row in recipe.rows]
    everything = FigureData(
        picture,
        tuple(chosen("row", picture.rows, rows)),
        tuple(chosen("column", picture.columns, [column.name for column in recipe.columns])),
        entries,
        _courses(picture, results) if picture.kind == "curves" else {},
        {column.name: column.x for column in recipe.columns if column.x is not None},
        {row: index for index, row in enumerate(rows)},
        recipe.digits,
    )
    there = [entry.place for entry in everything.shown]
    return replace(
        everything,
        rows=tuple(row for row in everything.rows if any(place[0] == row for place in there)),
        columns=tuple(column for column in everything.columns if any(place[1] == column for place in there)),
    )


def in_order(wanted: Sequence[FigureData]) -> list[FigureData]:
    """Numbered by the rows that are drawn: few of them share a colour, and a row looks the same in all pictures."""
    drawn = {row for one in wanted if one.picture.kind != "split" for row in one.rows}
    return [replace(one, order={row: k for k, row in enumerate(r for r in one.order if r in drawn)}) for one in wanted]


def _courses(picture: FigureRequest, results: Results) -> dict[Place, Curve]:
    found = {
        place: course_of(list(cell.records.values()), picture.of, picture.x) for place, cell in results.cells.items()
    }
    return {place: course for place, course in found.items() if course is not None}
