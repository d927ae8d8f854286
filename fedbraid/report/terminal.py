"""Tables for a terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from fedbraid.report.tables import TableData
from fedbraid.report.words import printable


def to_rich(table: TableData) -> Table:
    """Return a table that rich prints. Cells are Text, not markup: a label in square brackets is only a label."""
    drawn = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
        padding=(0, 1) if len(table.columns) <= 8 else 0,  # so that many columns fit a terminal of 80 columns too
        caption=Text("\n".join(["", *table.notes])),
        caption_justify="left",
    )
    for index, column in enumerate(table.columns):
        # The one long title takes two lines, so that a terminal of 80 columns keeps each number in one.
        title = Text(column.title.replace("rounds to ", "rounds to\n"))
        drawn.add_column(title, justify="right" if index else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*[Text(printable(cell.marked), style="bold" if cell.best else "") for cell in row])
    return drawn
