"""Measures of skew of a run's split: one number of the clients' label counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from fedbraid.core.label_distance import METRICS
from fedbraid.data.partition_summary import Counts, distances_to, gini


def _distance(metric: str, counts: Counts) -> float:
    return float(np.nanmean(distances_to(np.ones(counts.shape[1]), counts)[metric]))


def _ratio(axis: int, counts: Counts) -> float:
    totals = counts.sum(axis)
    return float(totals.max() / totals.min()) if totals.min() else float("inf")


SKEWS: Mapping[str, tuple[str, Callable[[Counts], float]]] = {
    **{m: (f"mean {m} distance of clients' labels from equal shares", partial(_distance, m)) for m in METRICS},
    "gini": ("Gini coefficient of the clients' sizes", lambda counts: gini(counts.sum(1))),
    "clients": ("size of the largest client over that of the smallest", partial(_ratio, 1)),
    "classes": ("size of the largest class over that of the smallest", partial(_ratio, 0)),
}
"""By name, in words and as a function of the label counts."""


def skew_of(name: str, label_counts: Sequence[Sequence[int]]) -> float:
    return SKEWS[name][1](np.array(label_counts, dtype=np.int64))
