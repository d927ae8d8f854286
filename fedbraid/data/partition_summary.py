"""Statistics of a partition."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedbraid.core.label_distance import METRICS, discrepancy
from fedbraid.data.dataset import Dataset, Partition

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


def summary(dataset: Dataset, partition: Partition) -> dict[str, Any]:
    """Return plain values: sizes, label counts and skew, of each client and of all. A regression's labels are None.

    Distances are those of FedDisco, from a client's label shares to equal shares and to those of all training samples;
    KL is in nats. `imbalance` is the largest divided by the smallest, None if that is empty.
    """
    sizes = partition.sizes
    unknown = {"classes": None, "to_uniform": None, "to_global": None}
    each: list[dict[str, Any]] = [{"size": size} | unknown for size in sizes.tolist()]
    values: dict[str, Any] = {
        "dataset": dataset.name,
        "recipe": partition.recipe,
        "clients": len(partition),
        "samples": len(dataset.train),
        "unused": len(dataset.train) - int(sizes.sum()),
        "sizes": {"min": int(sizes.min()), "median": float(np.median(sizes)), "max": int(sizes.max())},
        "gini": gini(sizes),
        "imbalance": {"clients": _imbalance(sizes), "classes": None},
        "each": each,
        "label_counts": None,
        "mean": None,
    }
    if dataset.task != "classification":
        return values
    counts = partition.label_counts(dataset.train.y, dataset.classes)
    everyone = np.bincount(dataset.train.y, minlength=dataset.classes)
    targets = {"to_uniform": np.ones(dataset.classes), "to_global": everyone}
    distances = {name: distances_to(target, counts) for name, target in targets.items()}
    for client, row in enumerate(counts):
        each[client] |= {"classes": int(np.count_nonzero(row))}
        each[client] |= {name: {m: _or_none(d[m][client]) for m in METRICS} for name, d in distances.items()}
    values["imbalance"]["classes"] = _imbalance(everyone)
    values["label_counts"] = counts.tolist()
    values["mean"] = {name: {m: _or_none(_mean(d[m])) for m in METRICS} for name, d in distances.items()}
    return values


def distances_to(target: NDArray[Any], counts: Counts) -> dict[str, Floats]:
    """For every metric, how far each client's label shares are from the target's; NaN for a client without samples."""
    totals = counts.sum(axis=1, keepdims=True)
    shares = torch.from_numpy(np.divide(counts, totals, where=totals > 0, out=np.full(counts.shape, np.nan)))
    aim = torch.from_numpy(target / target.sum())
    return {
        metric: torch.vmap(partial(discrepancy, metric), in_dims=(0, None))(shares, aim).numpy() for metric in METRICS
    }


def gini(sizes: Counts) -> float:
    """The Gini coefficient: the mean difference between two clients' sizes, over twice the mean size; 0 if equal."""
    n, ordered = len(sizes), np.sort(sizes)
    return float(2 * (np.arange(1, n + 1) * ordered).sum() / (n * ordered.sum()) - (n + 1) / n)


def _imbalance(sizes: Counts) -> float | None:
    return float(sizes.max() / sizes.min()) if sizes.min() else None


def _mean(values: Floats) -> float:
    """Over the clients that have samples."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
