"""Tables and pages as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedbraid.report.pages import Block, Code, Item, Items, Page, Pairs, Paragraph
from fedbraid.report.pictures import Picture
from fedbraid.report.tables import BEST_MARK, TableCell, TableColumn, TableData, detail_rows, text_rows
from fedbraid.report.words import printable


def table_markdown(table: TableData) -> str:
    """A table and its notes; details of a row are rows below it."""
    first, *others = table.columns
    lines = [
        markdown_row([literal(column.title) for column in table.columns]),
        markdown_row(["---" if column.words or column is first else "---:" for column in (first, *others)]),
    ]
    for row in table.rows:
        lines.append(markdown_row([*map(_cell, row)]))
        lines += [markdown_row([name, *map(literal, texts)]) for name, texts in detail_rows(row)]
    return "\n".join([*lines, *([""] if table.notes else []), *[f"- {literal(note)}" for note in table.notes]]) + "\n"


def page_markdown(page: Page) -> str:
    """A page's title, what stands before its sections, and the sections; the first has no heading of its own."""
    parts = [f"# {literal(page.title)}"]
    for paragraph in page.lead:
        parts.append(f"> **{literal(paragraph.text)}**" if paragraph.style == "loud" else literal(paragraph.text))
    for number, section in enumerate(page.sections):
        parts += [f"## {literal(section.title)}"] if number else []
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def literal(text: str) -> str:
    """Put backslashes before all that Markdown or the HTML inside it would read as more than a character."""
    return re.sub(r"([\\`*_{}\[\]<>|~#&$!])", r"\\\1", printable(text))


def _block(block: Block) -> str:
    match block:
        case TableData():
            return table_markdown(block)
        case Picture(name=name, reading=reading):
            return f"![{literal(reading)}]({name}.png)"
        case Items(items=items):
            return "\n".join(map(_item, items))
        case Code(text=text):
            return "\n".join(f"    {printable(line)}" for line in text.splitlines())
        case Paragraph(text=text):
            return literal(text)
        case Pairs(rows=rows):
            return table_markdown(text_rows((TableColumn("name", ""), TableColumn("value", "", words=True)), rows))
    return "\n\n".join(map(_block, block.blocks))


def _item(item: Item) -> str:
    lead = f"**{literal(item.lead)}**: " if item.lead else ""
    return f"- {lead}{literal(item.text)}" + (f" ({literal(item.note)})" if item.note else "")


def _cell(cell: TableCell) -> str:
    text = literal(cell.text)
    if cell.best:
        return f"**{text}**{literal(BEST_MARK)}"
    if cell.link:
        return f"[{text}]({cell.link})"
    return f"**{text}**" if cell.style == "strong" else text
