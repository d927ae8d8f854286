"""Tables as data, which the writers turn into HTML, Markdown, LaTeX, JSON and text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Literal

from fedbraid.report.words import NOTHING

BEST_MARK = "*"


@dataclass(frozen=True)
class TableColumn:
    key: str
    title: str
    words: bool = False  # text that may be wrapped; numbers stay whole and are aligned to the right


@dataclass(frozen=True)
class Detail:
    """A line below a cell's number, such as the paper's. Markdown and LaTeX give each kind of detail its own row.

    A page leaves out the text `–`, which only a row of its own needs.
    """

    row: str
    text: str
    emphasis: bool = False
    named: bool = True  # a page repeats the row's name before the text


@dataclass(frozen=True)
class TableCell:
    text: str
    value: float | None = None
    std: float | None = None
    best: bool = False
    style: Literal["", "main", "strong", "faint"] = ""
    link: str = ""
    details: tuple[Detail, ...] = ()

    @property
    def marked(self) -> str:
        return self.text + BEST_MARK if self.best else self.text


Row = tuple[TableCell, ...]


@dataclass(frozen=True)
class TableData:
    """Columns, rows of as many cells, and notes below them. The first column names the rows."""

    columns: tuple[TableColumn, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    kind: ClassVar[str] = "table"


def detail_rows(row: Row) -> list[tuple[str, list[str]]]:
    """The rows below a row: the name of each kind of detail, and its text for every cell after the first."""
    names = dict.fromkeys(detail.row for cell in row for detail in cell.details)
    texts = [{detail.row: detail.text for detail in cell.details} for cell in row[1:]]
    return [(name, [found.get(name, NOTHING) for found in texts]) for name in names]


def to_json(table: TableData) -> dict[str, Any]:
    """Return plain data that strict JSON can hold: what is not finite becomes None, its text still says `diverged`."""
    keys = [column.key for column in table.columns]
    return {
        "columns": [{"key": column.key, "title": column.title} for column in table.columns],
        "rows": [
            {keys[0]: row[0].text} | {key: _plain(cell) for key, cell in zip(keys[1:], row[1:], strict=True)}
            for row in table.rows
        ],
        "notes": list(table.notes),
    }


def _plain(cell: TableCell) -> dict[str, Any]:
    data: dict[str, Any] = {"text": cell.text, "value": _finite(cell.value)}
    if cell.std is not None:
        data["std"] = _finite(cell.std)
    return data | ({"best": True} if cell.best else {})


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def text_rows(columns: Sequence[TableColumn], rows: Sequence[Sequence[str]]) -> TableData:
    """A table of plain texts."""
    return TableData(tuple(columns), tuple(tuple(map(TableCell, row)) for row in rows))
