"""The caption of a study's table in LaTeX: what the numbers are, and how many are missing."""

from __future__ import annotations

from fedbraid.studies.report_notes import equivalence_words
from fedbraid.studies.study_summary import StudySummary
from fedbraid.studies.table_entries import TableEntry

MOST_KINDS = 3
"""Metrics that a caption names."""


def caption(summary: StudySummary, *, whole: bool) -> str:
    """Return the caption: what is shown, what the numbers are, and how many are missing; the report has the rest.

    `whole` says whether every row and column is there.
    """
    parts = [f"{summary.title}."]
    if summary.results.variant:
        parts.append(f"Run with {summary.results.variant}, which is not the paper's setting.")
    parts.append(_numbers(summary))
    if any(entry.difference is not None for entry in summary.entries.values()):
        parts.append(
            f"Differences are ours minus the paper's; {equivalence_words(summary.recipe.equivalence)}."
            if any(entry.equivalence for entry in summary.entries.values())
            else "Differences are ours minus the paper's."
        )
    left_out = [] if whole else ["Rows and columns without a number are left out."]
    return " ".join([*parts, *_missing(summary), *left_out])


def _numbers(summary: StudySummary) -> str:
    entries = [entry for entry in summary.entries.values() if not _left_out(summary, entry)]
    kinds = list(dict.fromkeys(f"{e.metric.label}{' in %' if e.scale == 100.0 else ''}" for e in entries))
    words = "; ".join(kinds) if len(kinds) <= MOST_KINDS else "numbers of several kinds, as rows and columns say"
    seeds = len(summary.results.seeds)
    spread = f"mean ± sample standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return f"{words[:1].upper()}{words[1:]}; {spread}."


def _missing(summary: StudySummary) -> list[str]:
    """Count the cells that should have a number and have none, and name the data that would be needed."""
    wanted = {place: entry for place, entry in summary.entries.items() if not _left_out(summary, entry)}
    absent = [place for place, entry in wanted.items() if not entry.values]
    configs = [summary.results.cells[place].settings for place in absent if wanted[place].skipped]
    data = dict.fromkeys(config.data.name for config in configs if config)
    if not absent:
        return []
    some = f"{len(configs)} of them " if len(configs) < len(absent) else ""
    because = f", {some}for lack of data ({', '.join(data)})" if data else ""
    return [f"{len(absent)} of {len(wanted)} cells {'is' if len(absent) == 1 else 'are'} missing{because}."]


def _left_out(summary: StudySummary, entry: TableEntry) -> bool:
    """Tell if the recipe itself says that there is no such cell."""
    return entry.skipped in {override.skip for override in summary.recipe.overrides if override.skip}
