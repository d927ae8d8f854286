"""A recipe's table in Markdown: a line for ours, and two more where the paper has numbers."""

from __future__ import annotations

from collections.abc import Sequence

from fedbraid.report.table import literal, markdown_row
from fedbraid.studies.reporting.account import Account
from fedbraid.studies.reporting.notes import told_of


def to_markdown(told: Account) -> str:
    recipe = told.recipe
    lines = [f"# {literal(told.title)}", ""]
    lines += [line for warning in told.warnings for line in (f"> **{literal(warning)}**", "")]
    lines += [*_table(told), "", *[f"- {literal(note)}" for note in told.notes]]
    if told.findings:
        lines += ["", "## Claims", ""]
        lines += [
            f"- **{one.verdict}**: {literal(one.claim.says)} ({literal(told_of(one, recipe.digits))})"
            for one in told.findings
        ]
    if recipe.readings:
        lines += ["", "## Readings", "", *[f"- {literal(reading)}" for reading in recipe.readings]]
    if told.commands:
        lines += ["", "## What is missing, and how to run it", "", *[f"    {command}" for command in told.commands]]
    return "\n".join(lines) + "\n"


def _table(told: Account) -> list[str]:
    lines = [markdown_row(["", *map(literal, told.columns)]), markdown_row(["---", *["---:"] * len(told.columns)])]
    for row in told.recipe.rows:
        mine = told.row(row)
        lines.append(_line(f"**{literal(row.name)}**", [told.ours(entry) for entry in mine]))
        if any(entry.paper for entry in mine):
            lines.append(_line("paper", [told.paper(entry) for entry in mine]))
            lines.append(_line("difference", [told.difference(entry) for entry in mine]))
    return lines


def _line(name: str, cells: Sequence[str]) -> str:
    return markdown_row([name, *map(literal, cells)])
