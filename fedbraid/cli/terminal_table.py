"""Tables of words for terminals of any width: rich cuts words, or whole columns, that do not fit, and here none is."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

PADDING = 2
"""Blanks beside each column."""


def word_table(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> RenderableType:
    """Plain text in columns that share `width` so that words stay whole.

    Where there is too little for that, a row is a paragraph: what is in its first column, and the rest below by title.
    """
    columns = [*zip(titles, *rows, strict=True)]
    least = [max(cell_len(word) for text in column for word in text.split()) for column in columns]
    most = [max(cell_len(line) for text in column for line in text.splitlines()) for column in columns]
    room = width - PADDING * len(titles)
    if sum(least) > room:
        return Group(*(_paragraph(titles, row) for row in rows))
    table = Table(box=None, header_style="bold")
    for title, wide in zip(titles, shared(room, least, most), strict=True):
        table.add_column(title, width=wide)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _paragraph(titles: Sequence[str], row: Sequence[str]) -> RenderableType:
    """A row below one another; words that are wider than the terminal are folded."""
    name, *values = row
    lines = [f"{title}: {value}" for title, value in zip(titles[1:], values, strict=True) if value]
    return Group(
        Text(name, "bold", overflow="fold"), Padding(Text("\n".join(lines), overflow="fold"), (0, 0, 0, PADDING))
    )


def shared(room: int, least: Sequence[int], most: Sequence[int]) -> list[int]:
    """Return the widths of columns that need `least` and can use `most`; what is left goes to the narrowest."""
    widths = [*least]
    while sum(widths) < room and (growing := [k for k, wide in enumerate(widths) if wide < most[k]]):
        widths[min(growing, key=widths.__getitem__)] += 1
    return widths
