"""A partition in numbers: one row for each client, and a few lines about all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedbraid.core.label_distance import METRICS
from fedbraid.data.dataset import Dataset, Partition
from fedbraid.data.dataset_facts import quantiles
from fedbraid.data.partition_summary import summary
from fedbraid.report.series import Floats
from fedbraid.report.tables import TableCell, TableColumn, TableData
from fedbraid.report.words import NOTHING, amount

MOST_ROWS = 20
"""More clients than this are shown by a few of them and by quantiles."""
ENDS, SKEWED = 3, 5
"""The number of first, of last and of most skewed clients that are shown then."""
QUANTILES = {"min": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "max": 1.0}
METRIC_NAMES = {"kl": "KL", "l1": "L1", "l2": "L2", "cosine": "cos"}
COUNTED = {"size", "tests", "classes"}
TARGETS = {"to_uniform": "u", "to_global": "a"}

Facts = Mapping[str, Any]


def split_facts(dataset: Dataset, partition: Partition) -> dict[str, Any]:
    """`summary`, and what it leaves out where there is some: label quantiles, noise, tests of the clients' own."""
    facts = summary(dataset, partition)
    each = facts["each"]
    if dataset.task != "classification":
        facts["label_quantiles"] = quantiles(dataset.train.y)
        for client, own in zip(each, partition.clients, strict=True):
            client["label_quantiles"] = quantiles(dataset.train.y[own]) if len(own) else None
    if partition.noise is not None:
        for client, level in zip(each, partition.noise, strict=True):
            client["noise"] = level
    if partition.client_tests is not None:
        for client, own in zip(each, partition.client_tests, strict=True):
            client["test_size"] = len(own)
    return facts


def in_a_sentence(facts: Facts) -> str:
    sizes = facts["sizes"]
    held = facts["samples"] - facts["unused"]
    alike = sizes["min"] == sizes["max"]
    span = f"{sizes['min']:,} each" if alike else f"{sizes['min']:,} to {sizes['max']:,} each"
    median = "" if alike else f", median {sizes['median']:,g}"
    whole = f"{held:,} of the {facts['samples']:,} training samples of {facts['dataset']}"
    return f"{facts['clients']:,} clients hold {whole}: {span}{median}."


def overall(facts: Facts) -> list[tuple[str, str]]:
    """Return the facts about all clients together."""
    imbalance = facts["imbalance"]
    rows = [
        ("samples that nobody holds", f"{facts['unused']:,}"),
        ("Gini coefficient of the sizes", _number(facts["gini"])),
        ("largest client / smallest", _number(imbalance["clients"])),
    ]
    if facts["label_counts"] is None:
        return rows
    rows.append(("largest class / smallest", _number(imbalance["classes"])))
    for target, words in (("to_uniform", "equal shares"), ("to_global", "overall shares")):
        means = ", ".join(f"{METRIC_NAMES[metric]} {_number(facts['mean'][target][metric])}" for metric in METRICS)
        rows.append((f"mean distance to {words}", means))
    return rows


def client_table(facts: Facts) -> TableData:
    """One row a client; of many clients the first, the last, the most skewed ones, and quantiles over all."""
    columns, values = _columns(facts)
    total = len(values)
    if total <= MOST_ROWS:
        rows = [(str(client), values[client]) for client in range(total)]
        notes = []
    else:
        skewed = _most_skewed(facts)
        ends = [*range(ENDS), *range(total - ENDS, total)]
        rows = [(str(client), values[client]) for client in ends]
        rows += [(f"{client}*", values[client]) for client in skewed]
        rows += [(name, _quantile(values, share)) for name, share in QUANTILES.items()]
        by = "KL a" if facts["label_counts"] is not None else "how far their median label is from that of all"
        notes = [
            f"of {total:,} clients the first {ENDS} and the last {ENDS}, then (*) the {len(skewed)} most skewed by "
            f"{by}, then each column's quantiles over all clients; --json has every client"
        ]
    cells = tuple((TableCell(name), *_cells(columns, row)) for name, row in rows)
    titles = TableColumn("client", "client"), *(TableColumn(title, title) for title in columns)
    return TableData(titles, cells, (*notes, *_notes(facts)))


def _columns(facts: Facts) -> tuple[list[str], Floats]:
    """The columns' titles and their values [clients, columns]; NaN where there is none."""
    each = facts["each"]
    found: dict[str, list[float | None]] = {"size": [client["size"] for client in each]}
    if "test_size" in each[0]:
        found["tests"] = [client["test_size"] for client in each]
    if "noise" in each[0]:
        found["noise"] = [client["noise"] for client in each]
    if facts["label_counts"] is not None:
        found["classes"] = [client["classes"] for client in each]
        for target, word in TARGETS.items():
            for metric in METRICS:
                found[f"{METRIC_NAMES[metric]} {word}"] = [client[target][metric] for client in each]
    else:
        for place, name in enumerate(QUANTILES):
            found[f"label {name}"] = [(client["label_quantiles"] or [None] * 5)[place] for client in each]
    return list(found), np.array(list(found.values()), dtype=np.float64).T


def _most_skewed(facts: Facts) -> list[int]:
    if facts["label_counts"] is not None:
        far = [client["to_global"]["kl"] for client in facts["each"]]
    else:
        middle = facts["label_quantiles"][2]
        far = [abs(q[2] - middle) if (q := client["label_quantiles"]) else None for client in facts["each"]]
    known = np.nan_to_num(np.array(far, dtype=np.float64), nan=-1.0)
    order: list[int] = np.argsort(-known, kind="stable").tolist()
    return order[:SKEWED]


def _quantile(values: Floats, share: float) -> Floats:
    """Return a quantile of each column, over the clients that have a value."""
    columns = [column[~np.isnan(column)] for column in values.T]
    return np.array([np.quantile(column, share) if len(column) else np.nan for column in columns])


def _notes(facts: Facts) -> list[str]:
    notes = []
    if "test_size" in facts["each"][0]:
        notes.append("tests: the client's own test samples")
    if "noise" in facts["each"][0]:
        notes.append("noise: its standard deviation, as a share of the inputs' range")
    if facts["label_counts"] is not None:
        notes.append(
            "KL (in nats), L1, L2, cosine: how far a client's label shares are from equal ones (u) and from those of "
            "all training samples (a)"
        )
    return notes


def _cells(columns: list[str], row: Floats) -> list[TableCell]:
    return [
        TableCell(f"{value:,.6g}" if title in COUNTED and not np.isnan(value) else _number(value), value)
        for title, value in zip(columns, row.tolist(), strict=True)
    ]


def _number(value: float | None) -> str:
    if value is None or np.isnan(value):
        return NOTHING
    return amount(value) if abs(value) >= 100 else f"{value:.3f}"
