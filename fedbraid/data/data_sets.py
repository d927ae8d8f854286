"""Data sets and partitions by name."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from fedbraid.config.registry import Entry, find
from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.data.datasets.digits import digits
from fedbraid.data.datasets.image_sets import IMAGES
from fedbraid.data.datasets.record_sets import RECORDS
from fedbraid.data.datasets.synthetic import synthetic
from fedbraid.data.partition_summary import summary
from fedbraid.data.partitions.by_name import PARTITIONS, find_partition, make_partition
from fedbraid.data.shaping import shaped

__all__ = [
    "PARTITIONS",
    "SHAPING",
    "Dataset",
    "Partition",
    "Split",
    "describe",
    "find_dataset",
    "find_partition",
    "load",
    "make_partition",
    "names",
    "summary",
]

DATASETS: tuple[Entry[Dataset], ...] = (
    Entry("digits", "scikit-learn's handwritten digits: 1,797 grey images of 8x8 pixels, 10 classes", digits),
    Entry("synthetic", "FedProx's SYNTHETIC(alpha, beta): users with linear models and inputs of their own", synthetic),
    *IMAGES,
    *RECORDS,
)


SHAPING = Entry("shaping", "", shaped).options
"""The options that every data set takes, with the defaults."""


def load(name: str, data_dir: str | Path | None = None, **options: Any) -> Dataset:
    """Load the data set called `name`; those that come as files are searched for in `data_dir`.

    Options are the set's own and those of `shaped`, which every set takes.
    """
    entry = find_dataset(name, options)
    own = {key: value for key, value in options.items() if key in entry.options}
    rest = {key: value for key, value in options.items() if key not in own}
    files = {"data_dir": data_dir} if "data_dir" in signature(entry.make).parameters else {}
    return shaped(entry.make(**files, **own), **rest)


def find_dataset(name: str, options: Mapping[str, Any]) -> Entry[Dataset]:
    """The data set called `name`, once it is known to take `options`."""
    return find("data set", name, DATASETS, options, also=SHAPING)


def names() -> list[str]:
    return [entry.name for entry in DATASETS]


def describe() -> tuple[Entry[Dataset], ...]:
    """Every data set with its name, its summary and its options."""
    return DATASETS
