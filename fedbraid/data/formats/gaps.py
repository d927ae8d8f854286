"""Cells of tables that are empty, and rows of numbers with gaps in them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from fedbraid.data.formats.columns import ColumnTable
from fedbraid.data.formats.csv_tables import numbers
from fedbraid.errors import UserError

WORDS = {"", "na", "n/a", "nan", "null", "none"}
"""What an empty cell may say, in small letters."""
GAP = math.nan
WAYS = (
    "data.missing=mean puts the mean of the training rows there, data.missing=drop leaves such rows out; or fill them "
    "in the file"
)
ENCODE = (
    "encode it as numbers first (such as 0 and 1), or leave it out by naming the columns of numbers as data.features; "
    "one that says whose a row is goes into data.users, one of texts into data.text"
)
"""What to do about a column that is none of numbers."""


def is_gap(cell: object) -> bool:
    if isinstance(cell, str):
        return cell.strip().lower() in WORDS
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def row_of(where: str, columns: Sequence[str], cells: Sequence[object]) -> list[float]:
    """The cells of a row as numbers, with `GAP` where they are empty."""
    try:
        return numbers(where, columns, cells)
    except UserError as error:
        filled = [0.0 if is_gap(cell) else cell for cell in cells]
        try:
            values = numbers(where, columns, filled)
        except UserError:
            raise UserError(f"{error}; {ENCODE}") from None
        return [GAP if is_gap(cell) else value for cell, value in zip(cells, values, strict=True)]


def refusal(tables: Sequence[ColumnTable], columns: Sequence[str], ways: str = WAYS) -> UserError:
    """Return the error that counts empty cells by column."""
    found = Counter[str]()
    for table in tables:
        for _, cells in table.rows(columns):
            found.update(name for name, cell in zip(columns, cells, strict=True) if is_gap(cell))
    total, each = sum(found.values()), [f"{count:,} in {name}" for name, count in found.most_common(10)]
    more = f" and {len(found) - 10} columns more" if len(found) > 10 else ""
    where = " and ".join(str(table.path) for table in tables)
    return UserError(f"{where} has {total:,} empty cell{'s' * (total > 1)}: {', '.join(each)}{more}. {ways}")
