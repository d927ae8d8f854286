"""CSV that is safe to open in a spreadsheet: names and labels are never read as formulas.

A spreadsheet evaluates a cell that begins with `=`, `+`, `-` or `@`, and a formula can send other cells of the sheet to
an address. Names and labels come from data, so other people choose them. A text that begins in such a way gets an
apostrophe in front, which makes it a text. Numbers stay as they are.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import Any, TextIO

BEGINS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""First characters of a formula. Tab and line ends are skipped by some spreadsheets, and wide signs read as narrow."""
NUMBER = re.compile(r"[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|inf|nan)", re.ASCII | re.IGNORECASE)


def cell(value: Any) -> Any:
    """Return a value with an apostrophe in front if it is a text that a spreadsheet could read as a formula.

    >>> cell("=1+1"), cell("-1.5"), cell(-1.5)
    ("'=1+1", '-1.5', -1.5)
    """
    if not isinstance(value, str) or not value.startswith(BEGINS_A_FORMULA) or NUMBER.fullmatch(value):
        return value
    return f"'{value}"


def write_csv(text: TextIO, rows: Iterable[Iterable[Any]]) -> None:
    """Write rows as CSV, one a line, with every cell safe to open in a spreadsheet."""
    for row in rows:
        line = io.StringIO()
        # Python before 3.13 quotes a carriage return only where it is part of the line end. Unquoted, it would begin a
        # new row in a spreadsheet, and what follows it a new cell.
        csv.writer(line, lineterminator="\r\n").writerow([cell(value) for value in row])
        text.write(line.getvalue().removesuffix("\r\n") + "\n")
