"""Cached arrays of texts and tables, and the splits that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedbraid.data.cache import ArrayWriter, Decoded
from fedbraid.data.dataset import Array, Split
from fedbraid.data.formats.vocabulary import Texts
from fedbraid.errors import UserError

Rows = dict[str, NDArray[np.int64]]
"""Which rows belong to "train" and which to "test"."""


def rows_of(is_test: NDArray[np.bool_], sources: Sequence[Path]) -> Rows:
    """The rows of the two splits, neither of which may be empty."""
    rows = {"train": np.flatnonzero(~is_test), "test": np.flatnonzero(is_test)}
    for name, chosen in rows.items():
        if not len(chosen):
            where = " and ".join(map(str, sources))
            raise UserError(f"nothing of {where} is left for the {name} split; more samples or fewer limits would do")
    return rows


def write_labels(writer: ArrayWriter, rows: Rows, y: Array, users: Array | None) -> None:
    """The splits' labels and users."""
    for name, chosen in rows.items():
        writer.put(f"{name}_y", y[chosen])
        if users is not None:
            writer.put(f"{name}_users", users[chosen])


class SplitWriter:
    """Room for the samples of both splits, which come in the order of the rows."""

    def __init__(self, writer: ArrayWriter, rows: Rows, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> None:
        self.arrays = {name: writer.array(f"{name}_x", (len(own), *shape), dtype) for name, own in rows.items()}
        self._rows = rows
        self._done = 0

    def add(self, x: Array) -> None:
        """The next rows' samples."""
        for name, own in self._rows.items():
            first, end = np.searchsorted(own, (self._done, self._done + len(x)))
            self.arrays[name][first:end] = x[own[first:end] - self._done]
        self._done += len(x)


def write_texts(writer: ArrayWriter, rows: Rows, texts: Texts, words: int, length: int) -> dict[str, Any]:
    """The splits' texts as tokens, by the vocabulary of the training texts; returns the tokens, as a fact."""
    tokens = texts.vocabulary(rows["train"], words)
    for name, chosen in rows.items():
        texts.encode(chosen, tokens, writer.array(f"{name}_x", (len(chosen), length), np.int32))
    return {"tokens": tokens}


def split(decoded: Decoded, name: str) -> Split:
    arrays = decoded.arrays
    return Split(arrays[f"{name}_x"], arrays[f"{name}_y"], arrays.get(f"{name}_users"))
