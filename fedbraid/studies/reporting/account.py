"""All that is told of a study, made once; Markdown, LaTeX, HTML and JSON only write it down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedbraid.studies.claims import Finding
from fedbraid.studies.naming import Place
from fedbraid.studies.recipe import Line, Recipe
from fedbraid.studies.reporting.entries import Entry, commands, entries, findings
from fedbraid.studies.reporting.machines import origins
from fedbraid.studies.reporting.notes import headline, notes, warnings
from fedbraid.studies.reporting.shared import Sharing, sharing
from fedbraid.studies.reporting.words import difference, ours, spread
from fedbraid.studies.table_results import Results

PAPERS = {"feddisco": "FedDisco", "rfedavg": "rFedAvg", "asd": "ASD", "fedskip": "FedSkip", "fedacd": "FedACD"}
"""What recipes call papers, and what people do."""


@dataclass(frozen=True)
class Account:
    recipe: Recipe
    results: Results
    entries: Mapping[Place, Entry]
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

    @property
    def columns(self) -> list[str]:
        return [column.name for column in self.recipe.columns]

    def row(self, row: Line) -> list[Entry]:
        return [self.entries[row.name, column] for column in self.columns]

    def ours(self, entry: Entry) -> str:
        return ours(entry, self.recipe.digits, len(self.results.seeds))

    def paper(self, entry: Entry) -> str:
        return spread(entry.paper, self.recipe.digits, share=entry.share)

    def difference(self, entry: Entry) -> str:
        return difference(entry, self.recipe.digits)


def account(recipe: Recipe, results: Results, call: str = "") -> Account:
    """All that is told. `call` is what `study run` is given, if that is more than the recipe's name."""
    shown, found = entries(recipe, results), findings(recipe, results)
    return Account(
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
