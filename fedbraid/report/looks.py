"""The look of rows in pictures: a colour and a marker for each method, and dashes for each strand added to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PLUS = "+"
"""Between a method's name and that of what is added to it."""
PLAIN = 1
"""The dashes of a row with nothing added."""
ON_TOP = 0, 2, 3, 4
"""Those of rows with something added to it, the first of them solid."""


@dataclass(frozen=True)
class Look:
    colour: int
    dashes: int | None = None  # None = those that go with the colour


def looks(rows: Sequence[str]) -> dict[str, Look]:
    """A look for each row. `X+Y` has the colour of `X` where that is a row too, so that pairs are seen: `X` is dashed,
    the first on top of it solid. Where there are no pairs, dashes tell rows apart as colours do."""
    roots = {row: _root(row, rows) for row in rows}
    colours = {root: number for number, root in enumerate(dict.fromkeys(roots.values()))}
    if len(colours) == len(rows):
        return {row: Look(number) for row, number in colours.items()}
    made = {row: Look(number, PLAIN) for row, number in colours.items()}
    for root, number in colours.items():
        above = [row for row in rows if roots[row] == root and row != root]
        made |= {row: Look(number, ON_TOP[k % len(ON_TOP)]) for k, row in enumerate(above)}
    return made


def _root(row: str, rows: Sequence[str]) -> str:
    """The shortest row that it is on top of, or itself. A name that only ends in a plus is one of its own."""
    below = [one for one in rows if row.startswith(one + PLUS) and row != one + PLUS]
    return min(below, key=len, default=row)
