"""The pictures of a report, each for light and dark, with a line that says what to read from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from fedbraid.core.metrics import METRICS
from fedbraid.report import plots
from fedbraid.report.run_groups import RunRecord, by_label, common_metric, further_metrics, validated
from fedbraid.report.style import DARK, LIGHT
from fedbraid.report.sweeps import sweep, sweeps

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    reading: str
    light: bytes
    dark: bytes


def pictures(records: Sequence[RunRecord], target: float | None = None) -> list[Picture]:
    """All pictures that the runs have data for."""
    metric = common_metric(records)
    better = "higher" if metric == "accuracy" else "lower"
    seeds = max(len(runs) for runs in by_label(records).values())
    band = " The band reaches from the lowest to the highest seed." if seeds > 1 else ""
    word = "Accuracy" if metric == "accuracy" else "Loss"
    held_out = validated((entry for record in records for entry in record.rounds), metric)
    tested = None if held_out else target  # of validation samples, where there are any
    found = [
        picture(
            "curves",
            f"{word} over rounds",
            f"A {better} line is better; a line that gets there further left needs fewer rounds.{band}",
            partial(plots.curves, records, metric, target=tested),
        ),
        picture(
            "cost",
            f"{word} against traffic",
            f"At the same height, the line further left moved less data; {better} at the same place is better.",
            partial(plots.cost, records, metric, target=tested),
        ),
    ]
    if held_out:
        found.append(
            picture(
                "curves-validation",
                f"{word} on validation samples over rounds",
                f"A {better} line is better. What is chosen here was not chosen on test data.{band}",
                partial(plots.curves, records, held_out, target=target),
            )
        )
    found += [
        picture(
            f"curves-{name}",
            f"{METRICS[name].title} over rounds",
            f"A {'higher' if METRICS[name].higher_is_better else 'lower'} line is better.{band}",
            partial(plots.curves, records, name),
        )
        for name in further_metrics(entry for record in records for entry in record.rounds)
    ]
    found += [
        picture(
            f"vary-{swept.name}",
            f"{word} against {swept.key}",
            f"{better.capitalize()} is better, and a flat line needs no tuning. A gap is where it diverged.{band}",
            partial(sweep, swept, metric),
        )
        for swept in sweeps(records)
    ]
    if any(entry.get("per_class") for record in records for entry in record.rounds):
        found.append(_per_class(records))
    return found + _clients(records)


def _per_class(records: Sequence[RunRecord]) -> Picture:
    return picture(
        "per_class",
        "Accuracy per class",
        "The closer a cell is to the background, the less the final model knows of that class; "
        "look for columns in which methods part.",
        partial(plots.per_class, records),
    )


def _clients(records: Sequence[RunRecord]) -> list[Picture]:
    """The clients' labels in the first run that has any."""
    shown = next((record for record in records if record.label_counts), None)
    if shown is None or shown.label_counts is None:
        return []
    return [
        picture(
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


def picture(name: str, title: str, reading: str, draw: Callable[..., Figure]) -> Picture:
    """What `draw` draws, on light and on dark paper."""
    return Picture(name, title, reading, plots.png(draw(theme=LIGHT)), plots.png(draw(theme=DARK)))
