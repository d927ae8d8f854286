"""The verdicts on a paper: one page with its claims, the evidence for each, and all numbers beside the paper's.

A page is made of the reports in a folder (`studies.reported`) and of the notes beside them (`studies.study_notes`).
Verdicts and numbers are the reports'; only causes, choices and deviations of the data are the notes'.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from math import isclose
from statistics import fmean
from typing import Any
from urllib.parse import quote

from fedbraid.report.markdown import literal, markdown_row
from fedbraid.report.words import NOTHING, signed
from fedbraid.studies.cell_evidence import READINGS
from fedbraid.studies.claims import RELATIVE
from fedbraid.studies.reported import Reported, claim_verdict, differing
from fedbraid.studies.run_origins import duration
from fedbraid.studies.study_notes import FindingNote, StudyNotes

UNKNOWABLE, NO_DATA = "cannot be known", "cannot be known here: no data"
READ_AS = "best", "last", "last 10"
"""Short titles of `READINGS`."""
HOW_TO_READ = (
    "A claim *holds* if the 95 % interval of its differences, paired over seeds, lies above zero and no pair lies "
    "below; it *does not hold* if the interval, or that of one pair by itself, lies below; else it is *undecided*.",
    "A number is the *same* as the paper's if the 95 % interval of our mean lies within the margin around it, "
    "*differs* if the interval lies outside, and is *open* otherwise, also with one seed. A recipe states its margin: "
    "1 point of accuracy if it says nothing. The margin is younger than the runs up to version 0.2.",
    "± is the sample standard deviation over seeds: of splits and initial weights together, because a seed draws both, "
    "unless a line says *initial weights*: there the split is the same with every seed.",
    "*best*, *last* and *last 10* are three readings of the same runs: the best round on the test set, the last round, "
    "the mean of the last ten evaluated rounds.",
)


def page_path(paper: str) -> str:
    """Return the path of a paper's page, from the folder of the reports."""
    return f"verdicts/{re.sub(r'[^a-z0-9]+', '-', paper.lower()).strip('-') or 'paper'}.md"


def section_link(report: Reported) -> str:
    """Return the link to a report's section, from the folder of the reports."""
    return f"{quote(page_path(report.study['paper']))}#{_anchor(report.folder)}"


def verdict_page(paper: str, found: Sequence[Reported], notes: StudyNotes, not_run: Sequence[str] = ()) -> str:
    """Return a paper's page in Markdown.

    Args:
        paper: the paper's title.
        found: the reports of its tables and figures.
        not_run: its tables and figures of which nothing was run, a line for each.
    """
    parts = [f"# {literal(paper)}: verdicts", *HOW_TO_READ[:1], _claims(found, notes)]
    if not_run:
        parts += ["## Not run", _items(not_run)]
    parts += ["## Numbers", _items(HOW_TO_READ[1:])]
    for report in found:
        parts += [f"### {literal(report.folder)}", _heading(report), *_numbers(report, notes)]
    parts += _spreads(found)
    choices = dict.fromkeys(says for report in found for says in notes.choices_of(report.study["name"]))
    why = {note.why: None for report in found for note in notes.variants if _is_variant(report, note.recipe, note.set)}
    if choices or why:
        parts += ["## Chosen after results were seen", _items([*choices, *why])]
    return "\n\n".join([*parts, "## Cost", ledger(found)]) + "\n"


def ledger(found: Sequence[Reported]) -> str:
    """Return the time that each table took, in Markdown: a column for each kind of processor."""
    kinds = sorted(
        {kind for report in found for kind in report.cost["seconds"]}, key=lambda kind: (kind == "CPU", kind)
    )
    rows = [markdown_row(["report", "runs", *map(literal, kinds)]), markdown_row(["---", *["---:"] * (1 + len(kinds))])]
    for report in found:
        spent = [report.cost["seconds"].get(kind) for kind in kinds]
        times = [duration(seconds) if seconds else NOTHING for seconds in spent]
        rows.append(markdown_row([literal(report.folder), str(report.cost["runs"]), *times]))
    note = "Time of all rounds. Tables that share runs count them each, as do processes that share a processor."
    return "\n".join([*rows, "", note])


# --- claims


def _claims(found: Sequence[Reported], notes: StudyNotes) -> str:
    rows = [markdown_row(["where", "the paper says", "verdict", "evidence", "why"]), markdown_row(["---"] * 5)]
    for report in found:
        item = f"[{literal(report.study['item'])}](#{_anchor(report.folder)})"
        where = item + (f", {literal(variant_words(report))}" if report.variant else "")
        for claim in report.claims:
            note = notes.finding(report.study["name"], claim["says"], tuple(report.settings))
            verdict = claim_words(claim, report, notes, note)
            why = literal(note.cause) if note else ""
            rows.append(markdown_row([where, literal(claim["says"]), verdict, evidence(claim, report), why]))
    return "\n".join(rows) if len(rows) > 2 else "The recipes that were run have no claims."


def variant_words(report: Reported) -> str:
    """Return how a table was run otherwise than its recipe says: `with partition.biased=40`."""
    rest = report.variant
    for setting in report.settings:
        rest = rest.replace(f"--set {shlex.quote(setting)}", "")
    return f"with {', '.join(filter(None, [' '.join(rest.split()), *report.settings]))}"


def claim_words(claim: Mapping[str, Any], report: Reported, notes: StudyNotes, note: FindingNote | None) -> str:
    """Return the verdict on a claim in Markdown, and what it lacks where it is undecided."""
    if note and note.undecidable:
        return f"**{UNKNOWABLE}**"
    if not claim["pairs"]:
        cells = {_key(side) for pair in claim["missing"] for side in pair.values()}
        data = {cell["data"].get("name") for cell in report.cells if (cell["row"], cell["column"]) in cells}
        return f"**{NO_DATA}**" if data and data <= {*notes.missing} else "not run"
    verdict = f"**{claim_verdict(claim)}**"
    reasons = []
    if claim["missing"] and claim["verdict"] == "undecided":
        reasons.append(f"{len(claim['pairs'])} of {len(claim['pairs']) + len(claim['missing'])} pairs were run")
    if claim["so_far"] == "undecided":
        reasons.append(_why_undecided(claim))
    return f"{verdict}: {'; '.join(filter(None, reasons))}" if any(reasons) else verdict


def _why_undecided(claim: Mapping[str, Any]) -> str:
    difference = claim["difference"]
    if any(pair["diverged"] for pair in claim["pairs"]):
        return "a run diverged"
    if difference is None or difference["mean"] is None:
        return "the pairs have no seed in common"
    if difference["seeds"] == 1:
        return "one seed"
    if difference["low"] is None:
        return "the same difference with every seed"
    return "a pair is on the other side" if difference["low"] > -claim["margin"] else "the interval has zero in it"


def evidence(claim: Mapping[str, Any], report: Reported) -> str:
    """Return a claim's evidence in one line: `+1.96 points (1.36 to 2.56), 5 seeds; 8 of 8 pairs; the paper +3.99`."""
    difference, unit = claim["difference"], claim["unit"]
    if difference is None or difference["mean"] is None:
        return NOTHING
    words = f"{signed(difference['mean'], ',.2f')} {unit}".strip()
    if difference["low"] is not None and difference["high"] is not None:
        words += f" ({signed(difference['low'], ',.2f')} to {signed(difference['high'], ',.2f')})"
    words += f", {difference['seeds']} seed{'s' * (difference['seeds'] > 1)}"
    parts = [words, f"{claim['agreeing']} of {len(claim['pairs'])} pairs"]
    theirs = [] if unit == RELATIVE else papers_differences(claim["pairs"], report)
    if theirs:
        parts.append(f"the paper {signed(fmean(theirs), ',.2f')}")
    return literal("; ".join(parts))


def papers_differences(pairs: Iterable[Mapping[str, Any]], report: Reported) -> list[float]:
    """Return the paper's own differences of the pairs that it has numbers for, above zero for the better cell."""
    cells = {(cell["row"], cell["column"]): cell for cell in report.cells}
    found = []
    for pair in pairs:
        one, other = cells[_key(pair["better"])], cells[_key(pair["than"])]
        if one["paper"] and other["paper"]:
            apart = one["paper"]["mean"] - other["paper"]["mean"]
            found.append(apart if one["higher_is_better"] else -apart)
    return found


# --- numbers


def _heading(report: Reported) -> str:
    counts = [f"{len(report.trained)} of {report.trainable} cells were run"] if report.trainable else []
    if report.untrained:
        counts.append(f"{len(report.untrained)} need no training")
    return literal(f"{report.told}. {'; '.join(counts)}; {report.cost['runs']} runs.")


def _numbers(report: Reported, notes: StudyNotes) -> list[str]:
    """The table of a report's numbers, and below it what its marks mean."""
    cells = report.run
    deviations = list(dict.fromkeys(says for cell in cells for says in _deviations(cell, notes)))
    with_readings = any(cell["readings"] for cell in cells)
    units = {cell["unit"] for cell in cells}
    titles = ["row", "column", "ours", "paper", "difference", "equivalence", *(READ_AS if with_readings else ()), "n"]
    rows = [markdown_row(titles), markdown_row(["---", "---", *["---:"] * (len(titles) - 2)])]
    for cell in cells:
        marks = "".join(f" [{deviations.index(says) + 1}]" for says in _deviations(cell, notes))
        same = cell["equivalence"]
        rows.append(
            markdown_row(
                [
                    literal(cell["row"]),
                    literal(cell["column"]) + literal(marks),
                    _number(cell["ours"], cell) + ("" if len(units) == 1 or not cell["unit"] else f" {cell['unit']}"),
                    _number(cell["paper"], cell),
                    NOTHING if cell["difference"] is None else signed(cell["difference"], _pattern(cell["difference"])),
                    same["verdict"] if same else NOTHING,
                    *([_number(cell["readings"].get(name), cell) for name in READINGS] if with_readings else []),
                    str(cell["n"]),
                ]
            )
        )
    margins = {cell["equivalence"]["margin"] for cell in cells if cell["equivalence"]}
    told = [f"margin of equivalence: {margin:g} point{'s' * (margin != 1)}" for margin in sorted(margins)]
    told += [f"spread over seeds: of {what}" for what in dict.fromkeys(c["spread_of"] for c in cells if c["trained"])]
    told += [f"[{number}] {says}" for number, says in enumerate(deviations, start=1)]
    return ["\n".join(rows), *([_items(told)] if told else [])] if cells else ["Nothing has a number."]


def _deviations(cell: Mapping[str, Any], notes: StudyNotes) -> list[str]:
    """Return how a cell's data deviate from the paper's. Part of a data set is one such way, whatever the notes say."""
    said = notes.deviations(cell["data"])
    counts = {"samples": "training samples", "test_samples": "test samples"}
    return said + [f"{n:,} {words} of it" for key, words in counts.items() if (n := cell["data"].get(key, 0))]


def _number(value: Mapping[str, float | None] | None, cell: Mapping[str, Any]) -> str:
    if value is None:
        return NOTHING
    if value["mean"] is None:
        return "diverged" if cell["diverged"] else "never"
    how = _pattern(value["mean"])
    spread = "" if value["std"] is None else f" ± {format(value['std'], how)}"
    return f"{format(value['mean'], how)}{spread}".replace("-", "\N{MINUS SIGN}")


def _pattern(size: float) -> str:
    """Two decimals, none of thousands, three digits of what is small."""
    if abs(size) >= 1000:
        return ",.0f"
    return ".2f" if abs(size) >= 0.1 or isclose(size, 0) else ".3g"


def _spreads(found: Sequence[Reported]) -> list[str]:
    """The spread of splits and that of initial weights apart, where a table has the same cell on both kinds of draw."""
    rows = [
        [report.folder, row, column, f"{both:.2f}", f"{weights:.2f}", f"{max(both**2 - weights**2, 0.0) ** 0.5:.2f}"]
        for report in found
        for row, column, both, weights in differing(report)
    ]
    if not rows:
        return []
    titles = ["report", "row", "column", "fresh draws", "one draw: initial weights", "splits alone"]
    table = [markdown_row(titles), markdown_row(["---", "---", "---", "---:", "---:", "---:"])]
    table += [markdown_row([*map(literal, row[:3]), *row[3:]]) for row in rows]
    note = "Standard deviations over seeds. That of splits alone is the root of the difference of the variances."
    return ["## Spread of splits and of initial weights", "\n".join([*table, "", note])]


def _is_variant(report: Reported, recipe: str, settings: Sequence[str]) -> bool:
    return report.study["name"] == recipe and {*report.settings} == {*settings}


def _key(place: Mapping[str, str]) -> tuple[str, str]:
    return place["row"], place["column"]


def _items(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line if line in HOW_TO_READ else literal(line)}" for line in lines)


def _anchor(title: str) -> str:
    """The name that a Markdown heading gets as the target of a link."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
