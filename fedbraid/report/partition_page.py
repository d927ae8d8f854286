"""A partition as pictures and as one page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from fedbraid.report import partition_figures as figures
from fedbraid.report.pages import Code, Page, Pairs, Paragraph, Section, picture_sections
from fedbraid.report.partition_table import Facts, client_table, in_a_sentence, overall
from fedbraid.report.pictures import Drawing, Picture
from fedbraid.report.run_settings import flattened


def partition_drawings(facts: Facts, names: Sequence[str]) -> list[Drawing]:
    """Return the pictures that papers draw of a partition, the most telling first. `names` are the classes'."""
    table = facts["label_counts"]
    if table is None:
        return [_label_spread(facts)]
    clients = Drawing(
        "clients",
        "Labels per client",
        "Each row is a client: the emptier and the more unequal the rows, the less alike the clients' data are. "
        "Bars count the client's samples.",
        partial(figures.clients, table, names),
    )
    counts = Drawing(
        "counts",
        "Counts",
        "How many samples of each class each client holds; the stronger the colour, the more.",
        partial(figures.counts, table, names),
    )
    shares = Drawing(
        "shares",
        "Shares",
        "Of what classes a client's samples are. Were all clients alike, the borders would be straight lines.",
        partial(figures.shares, table, names),
    )
    few = max(len(table), len(table[0])) <= figures.BUBBLES  # beyond, the first picture is a grid of colours already
    return [clients, counts, shares] if few else [clients, shares]


def partition_page(facts: Facts, drawn: Sequence[Picture]) -> Page:
    """The whole report as data."""
    return Page(
        f"{facts['dataset']} among {facts['clients']:,} clients",
        (Paragraph(in_a_sentence(facts), "headline"),),
        (
            Section("All clients together", (Pairs(overall(facts)),)),
            *picture_sections(drawn),
            Section("Clients", (client_table(facts),)),
            Section("Partition", (Pairs(list(flattened(facts["recipe"]).items())),)),
            Section("Command", (Code(facts["command"]),)),
        ),
    )


def _label_spread(facts: Facts) -> Drawing:
    held = [client["label_quantiles"] or [np.nan] * 5 for client in facts["each"]]
    sizes = np.array([client["size"] for client in facts["each"]], dtype=np.int64)
    return Drawing(
        "labels",
        "Labels per client",
        "Each row is a client: its labels from the lowest to the highest, the middle half of them thick, the median as "
        "a dot. Bars count the client's samples.",
        partial(figures.label_spread, np.array(held), sizes),
    )
