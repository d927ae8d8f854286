"""Tables of text: CSV files row by row, and numbers out of cells."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fedbraid.data.formats.streams import lines
from fedbraid.errors import UserError

LARGEST = float(np.finfo(np.float32).max)


def rows(path: Path, widths: Collection[int] = (), encoding: str = "utf-8") -> Iterator[tuple[int, list[str]]]:
    """Every row of a CSV file with the number of its last line. Blank lines are passed over.

    `widths` are the numbers of cells that a row may have; without them any number will do.
    """
    reader = csv.reader(lines(path, encoding), strict=True)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(f"{path}, line {reader.line_num} is not CSV: {error}") from None
        if widths and cells and len(cells) not in widths:
            wanted = " or ".join(map(str, widths))
            raise UserError(f"{path}, line {reader.line_num} has {len(cells)} cells; it must have {wanted}")
        if cells:
            yield reader.line_num, cells


def numbers(where: str, columns: Iterable[object], cells: Sequence[object]) -> list[float]:
    """Return the cells of a row as numbers. `where` names the row and `columns` its cells in errors."""
    try:
        values = list(map(float, cells))  # type: ignore[arg-type]
        if sum(map(abs, values)) <= LARGEST:
            return values
    except (TypeError, ValueError):
        pass
    # Rare: each by itself, to find the one to blame (or to see that only their sum is too large).
    return [_number(f"{where}, column {column}", cell) for column, cell in zip(columns, cells, strict=True)]


def _number(where: str, cell: object) -> float:
    if cell is None or cell == "":
        raise UserError(f"{where} is empty; it must be a number")
    try:
        value = float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    if not -LARGEST <= value <= LARGEST:
        shown = repr(cell)
        shown = shown if len(shown) < 40 else shown[:36] + "..."
        raise UserError(f"{where} is {shown}; it must be a number, and one that fits 32 bits")
    return value
