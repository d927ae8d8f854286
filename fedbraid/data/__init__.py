"""Data sets and partitions by name. Names load on first use, so that light modules of this room stay light."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbraid.data.data_sets import (
        DATASETS,
        PARTITIONS,
        SHAPING,
        Dataset,
        Partition,
        Split,
        describe,
        find_dataset,
        find_partition,
        load,
        make_partition,
        names,
        summary,
    )

__all__ = [
    "DATASETS",
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module("fedbraid.data.data_sets"), name)
    return value
