"""Data as arrays: a data set, and who holds which part of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbraid.core.task import Task

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Split:
    """Samples with their labels, and the user each one came from where the source knows."""

    x: Array
    y: Array
    users: Array | None = None

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Arrays in memory. `x` keeps the source's type (uint8 stays uint8) and is normalised on the device.

    `mean` and `std` are in the units of `x`, one value for each channel.
    """

    name: str
    train: Split
    test: Split
    classes: int
    task: Task = "classification"
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train.x.shape[1:])


@dataclass(frozen=True, eq=False)
class Partition:
    """Who holds what: one array of training indices per client, and how it was made."""

    clients: tuple[NDArray[np.int64], ...]
    recipe: dict[str, Any] = field(default_factory=dict)
    client_tests: tuple[NDArray[np.int64], ...] | None = None
    """Each client's own test samples, where the data knows whose they are (natural partitions)."""

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.array([len(c) for c in self.clients], dtype=np.int64)

    def label_counts(self, labels: Array, classes: int) -> NDArray[np.int64]:
        """[clients, classes]: how many samples of each class each client holds."""
        return np.stack([np.bincount(labels[c], minlength=classes) for c in self.clients])
