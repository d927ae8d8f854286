"""The report on a recipe's table as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from fedbraid.report.document import document, figure, numbers, pairs, text, verbatim
from fedbraid.report.pictures import Picture
from fedbraid.report.table import Cell, Column, Table
from fedbraid.report.words import NOTHING
from fedbraid.studies.claims import Finding, Pair
from fedbraid.studies.naming import AT
from fedbraid.studies.reporting.account import Account
from fedbraid.studies.reporting.entries import Entry
from fedbraid.studies.reporting.notes import interval_words, told_of
from fedbraid.studies.reporting.shared import to_toml


def page(told: Account, drawn: Sequence[Picture]) -> str:
    """The whole document as text; same arguments, same text."""
    body = [
        f"<h1>{text(told.title)}</h1>",
        *[f'<p class="loud">{text(warning)}</p>' for warning in told.warnings],
        f'<p class="headline">{text(told.headline)}</p>',
        "<h2>Table</h2>",
        _table(told),
        f'<p class="note">{"<br>".join(map(text, told.notes))}</p>',
        *_claims(told.findings, told.recipe.digits),
        *[figure(picture) for picture in drawn],
    ]
    if told.recipe.readings:
        items = "\n".join(f"<li>{text(reading)}</li>" for reading in told.recipe.readings)
        body += ["<h2>Readings</h2>", '<p class="note">What is taken where the paper leaves a choice.</p>']
        body.append(f"<ul>\n{items}\n</ul>")
    if told.commands:
        lines = "\n".join(told.commands)
        body += ["<h2>What is missing, and how to run it</h2>", f"<pre>{verbatim(lines)}</pre>"]
    settings = to_toml(told.settings)
    if settings.strip():
        body += ["<h2>Settings</h2>", f"<pre>{verbatim(settings)}</pre>"]
    body += ["<h2>Runs</h2>", pairs(told.origins)]
    return document(told.title, "\n".join(body))


def _table(told: Account) -> str:
    titles = "".join(f'<th scope="col">{text(name)}</th>' for name in ["", *told.columns])
    rows = "\n".join(
        f'<tr><th scope="row">{text(row.name)}</th>{"".join(_cell(told, entry) for entry in told.row(row))}</tr>'
        for row in told.recipe.rows
    )
    return (
        f'<div class="wide"><table class="numbers">\n<thead><tr>{titles}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _cell(told: Account, entry: Entry) -> str:
    """Ours, and below it the paper's and the difference."""
    ours = text(told.ours(entry))
    lines = [f"<strong>{ours}</strong>" if entry.values else f'<span class="note">{ours}</span>']
    if entry.paper:
        lines.append(f'<span class="note">paper {text(told.paper(entry))}</span>')
    if entry.difference is not None:
        lines.append(f'<span class="{"far" if entry.beyond else "note"}">{text(told.difference(entry))}</span>')
    return f"<td>{'<br>'.join(lines)}</td>"


def _claims(found: Sequence[Finding], digits: int) -> list[str]:
    if not found:
        return []
    items = "\n".join(
        f'<li><strong class="{one.verdict.split()[0]}">{text(one.verdict)}</strong>: {text(one.claim.says)}'
        f'<br><span class="note">{text(told_of(one, digits))}</span>{_pairs(one, digits)}</li>'
        for one in found
    )
    return ["<h2>Claims</h2>", f'<ul class="claims">{items}</ul>', f'<p class="note">{text(HOW)}</p>']


HOW = (
    "Differences are paired over seeds and count in the metric's own direction, so that more is for the claim. A claim "
    "holds if the 95 % Student-t interval of its mean difference lies above zero (or minus its margin), does not hold "
    "if it lies below, and is undecided otherwise, with one seed, or as long as some of its pairs were not run."
)


def _pairs(finding: Finding, digits: int) -> str:
    if not finding.pairs:
        return ""
    columns = (Column("pair", "pair"), Column("difference", "mean difference"))
    rows = tuple(_pair(pair, digits, finding.unit) for pair in finding.pairs)
    shown = numbers(Table(columns, rows, ()))
    return f"<details><summary>each pair</summary>{shown}</details>"


def _pair(pair: Pair, digits: int, unit: str) -> tuple[Cell, ...]:
    (row, column), (other, beside) = pair.better, pair.than
    name = f"{row} / {other}{AT}{column}" if column == beside else f"{AT.join(pair.better)} / {AT.join(pair.than)}"
    found = pair.interval
    return Cell(name), Cell(interval_words(found, digits, unit) if found else NOTHING)
