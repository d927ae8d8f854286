"""Tables of words for terminals of any width: rich cuts words that are wider than their column, and here none is."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

PADDING = 2
"""Blanks beside each column."""


def word_table(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """Plain text in columns that share `width` so that words stay whole; where there is too little, they are folded."""
    columns = [*zip(titles, *rows, strict=True)]
    least = [max(cell_len(word) for text in column for word in text.split()) for column in columns]
    most = [max(cell_len(line) for text in column for line in text.splitlines()) for column in columns]
    table = Table(box=None, header_style="bold")
    for title, wide in zip(titles, shared(width - PADDING * len(titles), least, most), strict=True):
        table.add_column(title, width=wide, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def shared(room: int, least: Sequence[int], most: Sequence[int]) -> list[int]:
    """How wide columns are that need `least` and have a use for `most`: what is left goes to the narrowest."""
    widths = [*least]
    while sum(widths) < room and (growing := [k for k, wide in enumerate(widths) if wide < most[k]]):
        widths[min(growing, key=widths.__getitem__)] += 1
    return widths
