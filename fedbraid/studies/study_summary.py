"""Everything that a study's report says, collected once: each file of the report is written from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite

from fedbraid.report.tables import Detail, TableCell, TableColumn, TableData
from fedbraid.report.words import MARK, NOTHING, SAME, number, pattern, signed
from fedbraid.studies.claims import Finding
from fedbraid.studies.naming import Place
from fedbraid.studies.recipe import Recipe
from fedbraid.studies.report_notes import headline, notes, warnings
from fedbraid.studies.run_origins import origins
from fedbraid.studies.shared_settings import Sharing, sharing
from fedbraid.studies.table_entries import Number, TableEntry, commands, entries, findings
from fedbraid.studies.table_results import Results

PAPERS = {"feddisco": "FedDisco", "rfedavg": "rFedAvg", "asd": "ASD", "fedskip": "FedSkip", "fedacd": "FedACD"}
"""The names of papers, by their names in recipes."""


@dataclass(frozen=True)
class StudySummary:
    recipe: Recipe
    results: Results
    entries: Mapping[Place, TableEntry]
    findings: tuple[Finding, ...]
    headline: str
    warnings: tuple[str, ...]  # said before all numbers
    notes: tuple[str, ...]  # below the table
    commands: tuple[str, ...]  # would run what is missing
    settings: Sharing
    origins: tuple[tuple[str, str], ...]

    @property
    def title(self) -> str:
        return f"{PAPERS.get(self.recipe.paper, self.recipe.paper)}, {self.recipe.item}: {self.recipe.title}"

    def table(self, *, numbered: bool = False) -> TableData:
        """The table as data, with the paper's numbers and the differences as details.

        `numbered` leaves out the rows and the columns that have no number, ours or the paper's, unless none has one.
        """
        there = [place for place, entry in self.entries.items() if entry.values or entry.without or entry.paper]
        kept = (numbered and there) or self.entries
        rows = [row.name for row in self.recipe.rows if any(place[0] == row.name for place in kept)]
        columns = [column.name for column in self.recipe.columns if any(place[1] == column.name for place in kept)]
        return TableData(
            (TableColumn("row", ""), *(TableColumn(name, name) for name in columns)),
            tuple(
                (TableCell(row, style="strong"), *(self._cell(self.entries[row, name]) for name in columns))
                for row in rows
            ),
            self.notes,
        )

    def _cell(self, entry: TableEntry) -> TableCell:
        digits, details = self.recipe.digits, []
        if entry.paper:
            details.append(Detail("paper", spread(entry.paper, digits, share=entry.share)))
            details.append(
                Detail("difference", difference(entry, digits), emphasis=entry.equivalence == "differs", named=False)
            )
        text = ours(entry, digits, len(self.results.seeds))
        return TableCell(text, style="main" if entry.values else "faint", details=tuple(details))


def summarise_study(recipe: Recipe, results: Results, call: str = "") -> StudySummary:
    """Gather it. `call` is what `study run` is given, if that is more than the recipe's name."""
    shown, found = entries(recipe, results), findings(recipe, results)
    return StudySummary(
        recipe,
        results,
        shown,
        tuple(found),
        headline(shown, found, results.variant),
        tuple(warnings(recipe, results, shown)),
        tuple(notes(recipe, results, shown)),
        tuple(commands(recipe, results, call)),
        sharing(results),
        tuple(origins(results)),
    )


def spread(value: Number | None, digits: int, *, share: bool) -> str:
    """`68.47 ± 0.25`."""
    if value is None:
        return NOTHING
    how = pattern(value.mean, digits, share=share)
    if value.std is None or not isfinite(value.mean):
        return number(value.mean, how)
    return f"{number(value.mean, how)} ± {number(value.std, how)}"


def ours(entry: TableEntry, digits: int, seeds: int) -> str:
    """Our number, and how many of the seeds it has where those are not all."""
    if entry.skipped:
        return NOTHING
    if entry.ours is None and entry.refused:
        return "cannot be run"
    if entry.ours is None:
        return "missing" if entry.missing else "no value"
    text = spread(entry.ours, digits, share=entry.share)
    if entry.never and entry.ours.mean != inf:
        text += f" ({len(entry.values) - entry.never}/{len(entry.values)} reached)"
    return text if len(entry.values) == seeds else f"{text} (n={len(entry.values)})"


def difference(entry: TableEntry, digits: int) -> str:
    if entry.difference is None or entry.ours is None:
        return NOTHING
    how = pattern(entry.ours.mean, digits, share=entry.share)
    marks = {"same": f" {SAME}", "differs": f" {MARK}"}
    return signed(entry.difference, how) + marks.get(entry.equivalence or "", "")
