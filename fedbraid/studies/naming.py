"""Rows, columns and cells by their names."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from fedbraid.errors import UserError, unknown
from fedbraid.studies.recipe import Claim

Place = tuple[str, str]
"""A cell: its row and its column."""

AT = " @ "
"""Between the row and the column of a cell's name."""


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """The one that is called so, or those that the pattern fits."""
    return [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]


def chosen(kind: str, patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names that some pattern fits, in their own order; a pattern that fits none is refused."""
    found = {name for pattern in patterns for name in _some(kind, pattern, names)}
    return [name for name in names if name in found]


def _some(kind: str, pattern: str, names: Sequence[str]) -> list[str]:
    found = matching(pattern, names)
    if not found:
        raise unknown(kind, pattern, names)
    return found


def places(text: str, rows: Sequence[str], columns: Sequence[str]) -> list[Place]:
    """The cells that `row`, `row @ column` or `@ column` names, by name or pattern."""
    row, at, column = (part.strip() for part in (text.partition("@") if text.startswith("@") else text.partition(AT)))
    if not column and (at or not row):
        raise UserError(f"{text!r} names no cells; write 'ROW', 'ROW{AT}COLUMN' or '@ COLUMN'")
    return [(r, c) for r in _some("row", row or "*", rows) for c in _some("column", column or "*", columns)]


def pairs(claim: Claim, rows: Sequence[str], columns: Sequence[str]) -> list[tuple[Place, Place]]:
    """The cells that a claim compares."""
    if not claim.better or len(claim.than) not in (1, len(claim.better)):
        raise UserError(
            f"{len(claim.better)} cells are named as better than {len(claim.than)}; it needs as many, or one for all"
        )
    others = claim.than if len(claim.than) == len(claim.better) else claim.than * len(claim.better)
    found = [
        (_place(better, column, rows, columns), _place(than, column, rows, columns))
        for better, than in zip(claim.better, others, strict=True)
        for column in chosen("column", claim.columns, columns)
    ]
    return list(dict.fromkeys(found))  # two cells that are named whole are one pair, however many columns there are


def _place(text: str, column: str, rows: Sequence[str], columns: Sequence[str]) -> Place:
    """`row` in this column, or `row @ column` as it says."""
    row, _, own = text.partition(AT)
    if row not in rows:
        raise unknown("row", row, rows)
    if own and own not in columns:
        raise unknown("column", own, columns)
    return row, own or column
