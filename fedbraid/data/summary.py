"""A partition in numbers a person can read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbraid.data.dataset import Dataset, Partition


def summary(dataset: Dataset, partition: Partition) -> dict[str, Any]:
    """Plain values: sizes, label counts and skew. Regression has no labels to count, so those two are None."""
    sizes = partition.sizes
    counts = None
    if dataset.task == "classification":
        counts = partition.label_counts(dataset.train.y, dataset.classes)
        everyone = np.bincount(dataset.train.y, minlength=dataset.classes)
    return {
        "dataset": dataset.name,
        "recipe": partition.recipe,
        "clients": len(partition),
        "samples": len(dataset.train),
        "unused": len(dataset.train) - int(sizes.sum()),
        "sizes": {"min": int(sizes.min()), "median": float(np.median(sizes)), "max": int(sizes.max())},
        "label_counts": None if counts is None else counts.tolist(),
        "mean_kl": None if counts is None else mean_kl(counts, everyone),
    }


def mean_kl(counts: NDArray[np.int64], everyone: NDArray[np.int64]) -> float:
    """The mean over clients of KL(client's label shares || everyone's), in nats; 0 for IID clients."""
    client = counts[counts.sum(axis=1) > 0]
    shares = client / client.sum(axis=1, keepdims=True)
    ratio = np.divide(shares, everyone / everyone.sum(), where=shares > 0, out=np.ones_like(shares))
    return float((shares * np.log(ratio)).sum(axis=1).mean())
