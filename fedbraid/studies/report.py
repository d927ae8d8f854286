"""The report of a study: its table for people and for programs, its claims and its pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedbraid.report import latex
from fedbraid.report.html import to_html
from fedbraid.report.markdown import page_markdown
from fedbraid.report.pages import Block, Code, Details, Item, Items, Page, Pairs, Paragraph, Section, picture_sections
from fedbraid.report.pictures import Picture
from fedbraid.report.tables import TableColumn, text_rows
from fedbraid.report.words import NOTHING
from fedbraid.storage.files import write_bytes
from fedbraid.studies.claims import Finding, Pair
from fedbraid.studies.naming import AT
from fedbraid.studies.recipe import Recipe
from fedbraid.studies.report_notes import finding_words, interval_words
from fedbraid.studies.report_pictures import pictures
from fedbraid.studies.results_json import to_json
from fedbraid.studies.shared_settings import to_toml
from fedbraid.studies.study_summary import StudySummary, summarise_study
from fedbraid.studies.table_caption import caption
from fedbraid.studies.table_results import Results

HOW = (
    "Differences are paired over seeds and count in the metric's own direction, so that more is for the claim. A claim "
    "holds if the 95 % Student-t interval of its mean difference lies above zero (or minus its margin), does not hold "
    "if it lies below, and is undecided otherwise, with one seed, or as long as some of its pairs were not run."
)
TABLE, CLAIMS, READINGS, MISSING = "Table", "Claims", "Readings", "What is missing, and how to run it"


def write_report(recipe: Recipe, results: Results, out: Path, call: str = "") -> list[Path]:
    """Write the report into `out`; the paths of what was written. `call` is what `study run` is given for it."""
    summary = summarise_study(recipe, results, call)
    drawn = pictures(recipe, results, summary.entries)
    contents = {
        "table.md": to_markdown(summary).encode(),
        "table.tex": to_latex(summary, out.name).encode(),
        "results.json": (json.dumps(to_json(summary), indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode(),
        **{f"{picture.name}.png": picture.light for picture in drawn},
        "report.html": to_html(page(summary, drawn)).encode(),
    }
    for name, content in contents.items():
        write_bytes(out / name, content)
    return [out / name for name in contents]


def page(summary: StudySummary, drawn: Sequence[Picture]) -> Page:
    """The whole report as data; same arguments, same page."""
    settings = to_toml(summary.settings)
    readings = Items(tuple(map(Item, summary.recipe.readings)))
    claims = Items(tuple(_claim(finding, summary.recipe.digits) for finding in summary.findings))
    sections: dict[str, tuple[Block, ...]] = {
        TABLE: (summary.table(),),
        CLAIMS: (claims, Paragraph(HOW)) if claims.items else (),
        **{section.title: section.blocks for section in picture_sections(drawn)},
        READINGS: (Paragraph("What is taken where the paper leaves a choice."), readings) if readings.items else (),
        MISSING: (Code("\n".join(summary.commands)),) if summary.commands else (),
        "Settings": (Code(settings),) if settings.strip() else (),
        "Runs": (Pairs(summary.origins),),
    }
    lead = [Paragraph(warning, "loud") for warning in summary.warnings]
    shown = tuple(Section(title, blocks) for title, blocks in sections.items() if blocks)
    return Page(summary.title, (*lead, Paragraph(summary.headline, "headline")), shown)


def to_markdown(summary: StudySummary) -> str:
    """The table, the claims and the readings."""
    return page_markdown(page(summary, ()).only(TABLE, CLAIMS, READINGS, MISSING))


def to_latex(summary: StudySummary, label: str = "") -> str:
    """The table alone. Its label is the recipe's name or `label`, as one text may have it with other settings too."""
    table = summary.table(numbered=True)
    shown = len(table.rows) * (len(table.columns) - 1)
    words = caption(summary, whole=shown == len(summary.entries))
    return latex.to_latex(table, words, label or summary.recipe.name, f"{summary.title}, continued.")


def _claim(finding: Finding, digits: int) -> Item:
    columns = TableColumn("pair", "pair"), TableColumn("difference", "mean difference")
    pairs = [_pair(pair, digits, finding.unit) for pair in finding.pairs]
    details = (Details("each pair", (text_rows(columns, pairs),)),) if pairs else ()
    return Item(finding.claim.says, finding.verdict, finding_words(finding, digits), details)


def _pair(pair: Pair, digits: int, unit: str) -> tuple[str, str]:
    (row, column), (other, beside) = pair.better, pair.than
    name = f"{row} / {other}{AT}{column}" if column == beside else f"{AT.join(pair.better)} / {AT.join(pair.than)}"
    return name, interval_words(pair.interval, digits, unit) if pair.interval else NOTHING
