"""The report on runs: the table, the pictures and one page, for a single run and for a comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedbraid.core.metrics import METRICS
from fedbraid.report import plots
from fedbraid.report.analysed import analyses
from fedbraid.report.curves import about_bands
from fedbraid.report.headline import caveats, headline
from fedbraid.report.html import to_html
from fedbraid.report.markdown import table_markdown
from fedbraid.report.pages import Block, Code, Details, Page, Pairs, Paragraph, Section, picture_sections
from fedbraid.report.pictures import Drawing, Picture
from fedbraid.report.run_groups import RunRecord, by_label, common_metric, further_metrics, validated
from fedbraid.report.run_settings import flattened, setting_rows, task_in_words
from fedbraid.report.run_table import comparison
from fedbraid.report.series import series
from fedbraid.report.sweep_figures import sweep, sweeps
from fedbraid.report.tables import to_json
from fedbraid.report.words import listed, printable
from fedbraid.storage.files import write_bytes

MOST_NAMED = 3
"""Methods that a title names."""


def write_comparison(
    directory: Path | str,
    records: Sequence[RunRecord],
    target: float | None = None,
    title: str = "",
    *,
    environment: Mapping[str, Any],
    command: str = "",
    remarks: Sequence[str] = (),
    date: str = "",
) -> list[Path]:
    """Write the table, the pictures and the report into `directory`, and return the paths of what was written.

    `command` is the command line or the configuration, shown as it is. `date` is when the report is written. Without
    a `title` the report is named by its methods and their task.
    """
    table = comparison(records, target, remarks)
    drawn = pictures(records, target)
    page = run_page(records, drawn, target, title, environment, command, analyses(Path(directory)), remarks, date)
    contents = {
        "table.md": table_markdown(table).encode(),
        "table.json": (json.dumps(to_json(table), indent=2, allow_nan=False) + "\n").encode(),
        **{f"{picture.name}.png": picture.light for picture in drawn},
        "report.html": to_html(page).encode(),
    }
    for name, content in contents.items():
        write_bytes(Path(directory) / name, content)
    return [Path(directory) / name for name in contents]


def run_page(
    records: Sequence[RunRecord],
    drawn: Sequence[Picture],
    target: float | None,
    title: str,
    environment: Mapping[str, Any],
    command: str,
    analysed: Block | None = None,
    remarks: Sequence[str] = (),
    date: str = "",
) -> Page:
    """The report as data; same arguments, same page."""
    chosen, defaults = setting_rows(records)
    settings: tuple[Block, ...] = (Pairs(chosen),)
    if defaults:
        settings += (Details(f"{len(defaults)} settings that are the defaults", (Pairs(defaults),)),)
    sections = [
        Section("Comparison" if len(by_label(records)) > 1 else "Result", (comparison(records, target, remarks),)),
        Section("Settings", settings),
        *picture_sections(drawn),
        *([Section("Analyses", (analysed,))] if analysed else []),
        *([Section("Configuration", (Code(command),))] if command.strip() else []),
        Section("Environment", (Pairs(list(flattened(environment).items())),)),
    ]
    task = task_in_words(records)
    lead = [Paragraph(headline(records), "headline"), *[Paragraph(note, "caveat") for note in caveats(records)]]
    subtitle = " · ".join(filter(None, [task, date and f"reported on {date}"]))
    return Page(title or _title(records), tuple(lead), tuple(sections), subtitle)


def _title(records: Sequence[RunRecord]) -> str:
    """The methods and the data."""
    labels = [printable(label) for label in by_label(records)]
    data = dict.fromkeys(str(name) for record in records if (name := record.settings.get("data", {}).get("name")))
    methods = listed(labels) if len(labels) <= MOST_NAMED else f"{len(labels)} methods"
    return f"{methods} on {listed([*data])}" if data else methods


def pictures(records: Sequence[RunRecord], target: float | None = None) -> list[Picture]:
    """Draw all pictures that the runs have data for."""
    return [drawing.render() for drawing in drawings(records, target)]


def drawings(records: Sequence[RunRecord], target: float | None = None) -> list[Drawing]:
    metric = common_metric(records)
    better = "higher" if metric == "accuracy" else "lower"
    band = about_bands([[*series(records, metric).values()]])
    seeds = max(len(runs) for runs in by_label(records).values())
    whiskers = " Whiskers are the standard deviation over seeds." if seeds > 1 else ""
    word = "Accuracy" if metric == "accuracy" else "Loss"
    held_out = validated((entry for record in records for entry in record.rounds), metric)
    tested = None if held_out else target  # of validation samples, where there are any
    found = [
        Drawing(
            "curves",
            f"{word} over rounds",
            f"A {better} line is better; a line that gets there further left needs fewer rounds.{band}",
            partial(plots.curves, records, metric, target=tested),
        ),
        Drawing(
            "cost",
            f"{word} against traffic",
            f"At the same height, the line further left moved less data; {better} at the same place is better.{band}",
            partial(plots.cost, records, metric, target=tested),
        ),
    ]
    if held_out:
        found.append(
            Drawing(
                "curves-validation",
                f"{word} on validation samples over rounds",
                f"A {better} line is better. What is chosen here was not chosen on test data.{band}",
                partial(plots.curves, records, held_out, target=target),
            )
        )
    found += [
        Drawing(
            f"curves-{name}",
            f"{METRICS[name].title} over rounds",
            f"A {'higher' if METRICS[name].higher_is_better else 'lower'} line is better.{band}",
            partial(plots.curves, records, name),
        )
        for name in further_metrics(entry for record in records for entry in record.rounds)
    ]
    found += [
        Drawing(
            f"vary-{swept.name}",
            f"{word} against {swept.key}",
            f"{better.capitalize()} is better, and a flat line needs no tuning. A gap is where it diverged.{whiskers}",
            partial(sweep, swept, metric),
        )
        for swept in sweeps(records)
    ]
    if any(entry.get("per_class") for record in records for entry in record.rounds):
        found.append(_per_class(records))
    return found + _clients(records)


def _per_class(records: Sequence[RunRecord]) -> Drawing:
    return Drawing(
        "per_class",
        "Accuracy per class",
        "The closer a cell is to the background, the less the final model knows of that class; "
        "look for columns in which methods part.",
        partial(plots.per_class, records),
    )


def _clients(records: Sequence[RunRecord]) -> list[Drawing]:
    """The clients' labels in the first run that has any."""
    shown = next((record for record in records if record.label_counts), None)
    if shown is None or shown.label_counts is None:
        return []
    return [
        Drawing(
            "clients",
            "Labels per client",
            "Each row is a client: the emptier and the more unequal the rows, the less alike the clients' data "
            f"are. Bars count the client's samples.{_whose_split(records, shown)}",
            partial(plots.clients, shown.label_counts),
        )
    ]


def _whose_split(records: Sequence[RunRecord], shown: RunRecord) -> str:
    alike = all(record.label_counts == shown.label_counts for record in records)
    return "" if alike else f" Shown is seed {shown.seed}; other runs split the data differently."
