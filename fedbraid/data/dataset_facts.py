"""A data set in plain values, and a few of its samples to look at."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbraid.data.dataset import Array, Dataset

Indices = NDArray[np.int64]

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
EXAMPLES = 5
"""Texts that are shown."""


def facts(dataset: Dataset) -> dict[str, Any]:
    """Return the facts that `fedbraid data inspect` shows, as values that JSON can hold."""
    train, test = dataset.train, dataset.test
    found: dict[str, Any] = {
        "name": dataset.name,
        "task": dataset.task,
        "source": dataset.source or "built in",
        "train": len(train),
        "test": len(test),
        "sample": list(dataset.shape),
        "type": str(train.x.dtype),
    }
    if dataset.task == "classification":
        found |= {"classes": dataset.classes, "per_class": _per_class(dataset)}
    else:
        found["label"] = {"train": quantiles(train.y), "test": quantiles(test.y)}
    if train.users is not None:
        found["users"] = _users(train.users, test.users)
    if is_text(dataset):
        found |= {"vocabulary": len(dataset.tokens), "examples": _texts(dataset)}
    elif not is_image(dataset):
        flat = train.x.reshape(len(train), -1)
        found["features"] = {"min": flat.min(axis=0).tolist(), "max": flat.max(axis=0).tolist()}
    return found


def is_text(dataset: Dataset) -> bool:
    return bool(dataset.tokens)


def is_image(dataset: Dataset) -> bool:
    return not is_text(dataset) and len(dataset.shape) == 3 and dataset.shape[0] in (1, 3)


def quantiles(values: Array) -> list[float]:
    """The lowest, the quartiles with the median between them, the highest."""
    found: list[float] = np.quantile(values, QUANTILES).tolist()
    return found


def some_classes(dataset: Dataset, most: int) -> Indices:
    """At most so many of the classes that occur, evenly chosen."""
    return _evenly(np.unique(dataset.train.y), most)


def some_of_class(dataset: Dataset, label: int, most: int) -> Indices:
    """At most so many training samples of a class, evenly chosen: always the same, and not of the first user alone."""
    return _evenly(np.flatnonzero(dataset.train.y == label), most)


def class_name(dataset: Dataset, label: int) -> str:
    return dataset.labels[label] if dataset.labels else str(label)


def _evenly(values: Indices, most: int) -> Indices:
    return values[np.linspace(0, len(values) - 1, min(most, len(values))).astype(np.int64)]


def _per_class(dataset: Dataset) -> list[dict[str, Any]]:
    train, test = (np.bincount(s.y, minlength=dataset.classes).tolist() for s in (dataset.train, dataset.test))
    return [
        {"class": label, "name": class_name(dataset, label), "train": train[label], "test": test[label]}
        for label in range(dataset.classes)
    ]


def _users(train: Array, test: Array | None) -> dict[str, Any]:
    sizes = np.unique(train, return_counts=True)[1]
    return {
        "train": len(sizes),
        "test": None if test is None else len(np.unique(test)),
        "samples": {"min": int(sizes.min()), "median": float(np.median(sizes)), "max": int(sizes.max())},
    }


def _texts(dataset: Dataset) -> list[dict[str, str]]:
    """One of each of a few classes, or some of all where there are no classes."""
    if dataset.task == "classification":
        rows = [int(some_of_class(dataset, int(label), 1)[0]) for label in some_classes(dataset, EXAMPLES)]
        return [{"label": class_name(dataset, int(dataset.train.y[k])), "text": _text(dataset, k)} for k in rows]
    rows = _evenly(np.arange(len(dataset.train)), EXAMPLES).tolist()
    return [{"label": f"{dataset.train.y[k]:g}", "text": _text(dataset, k)} for k in rows]


def _text(dataset: Dataset, row: int) -> str:
    """A sample as it was written, but for what its tokens do not keep."""
    between = "" if all(len(token) == 1 for token in dataset.tokens[1:]) else " "  # characters, or words
    return between.join(dataset.tokens[number] for number in dataset.train.x[row].tolist() if number)
