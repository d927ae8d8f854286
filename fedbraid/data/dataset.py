"""Data as arrays: a data set, and who holds which part of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbraid.core.task import Task
from fedbraid.errors import UserError

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
    labels: tuple[str, ...] = ()  # the classes' names, where the source has them
    tokens: tuple[str, ...] = ()  # of a text: what each number in `x` stands for; 0 is padding
    source: str = ""  # where it was found

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
    noise: tuple[float, ...] | None = None
    """Feature skew: the standard deviation of the noise on each client's inputs, as a share of their range."""

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.array([len(c) for c in self.clients], dtype=np.int64)

    def label_counts(self, labels: Array, classes: int) -> NDArray[np.int64]:
        """[clients, classes]: how many samples of each class each client holds."""
        return np.stack([np.bincount(labels[c], minlength=classes) for c in self.clients])


def check_data(dataset: Dataset, partition: Partition) -> None:
    """What engines rely on, said in a sentence where it does not hold."""
    for name, split in (("training", dataset.train), ("test", dataset.test)):
        if len(split.x) != len(split.y):
            raise UserError(f"{dataset.name} has {len(split.x)} {name} samples but {len(split.y)} labels")
        if not len(split):
            raise UserError(f"{dataset.name} has no {name} samples; give at least one")
        if split.y.ndim != 1:
            raise UserError(f"{dataset.name}'s {name} labels have shape {split.y.shape}; they must be one number each")
        whole = np.issubdtype(split.y.dtype, np.integer)
        if dataset.task == "classification" and not whole:
            raise UserError(f"{dataset.name}'s {name} labels are {split.y.dtype}; class labels must be whole numbers")
        if dataset.task == "classification" and not 0 <= split.y.min() <= split.y.max() < dataset.classes:
            raise UserError(
                f"{dataset.name}'s {name} labels lie in {split.y.min()}..{split.y.max()}; "
                f"with {dataset.classes} classes they must lie in 0..{dataset.classes - 1}"
            )
    if dataset.task == "regression" and dataset.classes != 1:
        raise UserError(f"a regression has classes=1, not {dataset.classes}")
    if not len(partition):
        raise UserError("the partition has no clients; give at least one")
    for k, own in enumerate(partition.clients):
        if not len(own):
            raise UserError(f"client {k} has no samples; leave it out of the partition")
        if not 0 <= min(own) <= max(own) < len(dataset.train):
            raise UserError(f"client {k} holds sample {max(own)}, but {dataset.name} has {len(dataset.train)}")
