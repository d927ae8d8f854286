"""A partition as pictures, and as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedbraid.report import splits
from fedbraid.report.document import document, figure, numbers, pairs, text, verbatim
from fedbraid.report.pictures import Picture, picture
from fedbraid.report.settings import flattened
from fedbraid.report.split_table import Facts, client_table, in_a_sentence, overall

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """A picture before it is drawn."""

    name: str
    title: str
    reading: str
    draw: Callable[..., Figure]

    def drawn(self) -> Picture:
        return picture(self.name, self.title, self.reading, self.draw)


def split_drawings(told: Facts, names: Sequence[str]) -> list[Drawing]:
    """What papers draw of a partition: the first says most. `names` are the classes'."""
    table = told["label_counts"]
    if table is None:
        return [_label_spread(told)]
    clients = Drawing(
        "clients",
        "Labels per client",
        "Each row is a client: the emptier and the more unequal the rows, the less alike the clients' data are. "
        "Bars count the client's samples.",
        partial(splits.clients, table, names),
    )
    counts = Drawing(
        "counts",
        "Counts",
        "How many samples of each class each client holds; the stronger the colour, the more.",
        partial(splits.counts, table, names),
    )
    shares = Drawing(
        "shares",
        "Shares",
        "Of what classes a client's samples are. Were all clients alike, the borders would be straight lines.",
        partial(splits.shares, table, names),
    )
    few = max(len(table), len(table[0])) <= splits.BUBBLES  # beyond, the first picture is a grid of colours already
    return [clients, counts, shares] if few else [clients, shares]


def split_page(told: Facts, drawn: Sequence[Picture]) -> str:
    """The whole document as text."""
    title = f"{told['dataset']} among {told['clients']:,} clients"
    body = [
        f"<h1>{text(title)}</h1>",
        f'<p class="headline">{text(in_a_sentence(told))}</p>',
        pairs(overall(told)),
        *map(figure, drawn),
        "<h2>Clients</h2>",
        numbers(client_table(told)),
        "<h2>Recipe</h2>",
        pairs(list(flattened(told["recipe"]).items())),
        "<h2>Command</h2>",
        f"<pre>{verbatim(told['command'])}</pre>",
    ]
    return document(title, "\n".join(body))


def _label_spread(told: Facts) -> Drawing:
    held = [client["label_quantiles"] or [np.nan] * 5 for client in told["each"]]
    sizes = np.array([client["size"] for client in told["each"]], dtype=np.int64)
    return Drawing(
        "labels",
        "Labels per client",
        "Each row is a client: its labels from the lowest to the highest, the middle half of them thick, the median as "
        "a dot. Bars count the client's samples.",
        partial(splits.label_spread, np.array(held), sizes),
    )
