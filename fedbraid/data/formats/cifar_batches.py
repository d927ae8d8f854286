"""CIFAR's batches: the binary layout, and the pickled one of Python 2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbraid.data.dataset import Array
from fedbraid.data.formats.pickles import read_pickle
from fedbraid.errors import UserError

PIXELS = (3, 32, 32)
BYTES = 3 * 32 * 32


@dataclass(frozen=True)
class CifarKind:
    """An image's labels in the order of the binary layout: the pickles' key, the number of classes."""

    labels: tuple[tuple[str, int], ...]

    @property
    def width(self) -> int:
        """Bytes of one image in the binary layout."""
        return len(self.labels) + BYTES


@dataclass(frozen=True)
class CifarBatch:
    """Images [n, 3, 32, 32], and labels [n] for each of the kind's keys."""

    x: Array
    labels: dict[str, Array]


def read_binary(path: Path, kind: CifarKind, rows: int) -> CifarBatch:
    """A binary file: for every image its labels, one byte each, and its pixels, channel after channel."""
    try:
        size = path.stat().st_size
        if size != rows * kind.width:
            raise UserError(f"{path} has {size:,} bytes; {rows:,} images are {rows * kind.width:,}")
        table = np.fromfile(path, np.uint8).reshape(rows, kind.width)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error
    columns = {key: table[:, at] for at, (key, _) in enumerate(kind.labels)}
    return _checked(path, kind, table[:, len(kind.labels) :].reshape(rows, *PIXELS), columns)


def read_python(path: Path, kind: CifarKind, rows: int, checksum: str) -> CifarBatch:
    """A pickled file, which must be the published one."""
    held = read_pickle(path, checksum, "fetch it anew, or lay out the binary version, which is read without running it")
    x, columns = _fields(path, kind, held)
    if x.shape != (rows, BYTES) or x.dtype != np.uint8 or any(c.shape != (rows,) for c in columns.values()):
        raise UserError(f"{path} does not hold {rows:,} images of {BYTES:,} bytes with their labels")
    return _checked(path, kind, x.reshape(rows, *PIXELS), columns)


def _fields(path: Path, kind: CifarKind, held: Any) -> tuple[Array, dict[str, Array]]:
    try:
        return np.asarray(held["data"]), {key: np.asarray(held[key], np.int64) for key, _ in kind.labels}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path} holds no images with {' and '.join(key for key, _ in kind.labels)}") from error


def _checked(path: Path, kind: CifarKind, x: Array, columns: dict[str, Array]) -> CifarBatch:
    for key, classes in kind.labels:
        low, high = columns[key].min(), columns[key].max()
        if low < 0 or high >= classes:
            raise UserError(f"{path} has {key} in {low}..{high}; they must lie in 0..{classes - 1}")
    return CifarBatch(x, {key: column.astype(np.int64) for key, column in columns.items()})
