"""Data as arrays: a data set, and who holds which part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbraid.config.registry import whole
from fedbraid.core.notebook import facts_table, short_repr, some
from fedbraid.core.task import Task
from fedbraid.errors import UserError

Array = NDArray[Any]

LONGEST_SHOWN = 60
"""Characters of an option that a partition shows of its recipe."""


@dataclass(frozen=True, eq=False)
class Split:
    """Samples with their labels, and the user each one came from where the source knows.

    Torch's tensors become arrays.
    """

    x: Array
    y: Array
    users: Array | None = None

    def __post_init__(self) -> None:
        for name in ("x", "y", "users"):
            object.__setattr__(self, name, _array(getattr(self, name)))

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
    features: tuple[str, ...] = ()  # of a table: the names of its columns, in the order of `x`
    target: tuple[float, float] = (0.0, 1.0)  # of a regression: mean and deviation that were taken out of `y`
    source: str = ""  # where it was found

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train.x.shape[1:])

    def __repr__(self) -> str:
        facts: dict[str, Any] = {"train": len(self.train), "test": len(self.test), "shape": self.shape}
        return short_repr("Dataset", self.name, **facts, **self._targets)

    def _repr_html_(self) -> str:
        facts: dict[str, Any] = {
            "training samples": f"{len(self.train):,}",
            "test samples": f"{len(self.test):,}",
            "shape of a sample": self.shape,
            "type": self.train.x.dtype,
            **self._targets,
        }
        named = {"class names": some(list(self.labels)), "features": some(list(self.features)), "source": self.source}
        return facts_table(f"Dataset {self.name}", facts | {key: text for key, text in named.items() if text})

    @property
    def _targets(self) -> dict[str, Any]:
        return {"classes": self.classes} if self.task == "classification" else {"task": self.task}


@dataclass(frozen=True, eq=False)
class Partition:
    """The clients' shares of a data set: one array of training indices for each client, and their recipe."""

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

    def __repr__(self) -> str:
        return short_repr("Partition", **self._facts)

    def _repr_html_(self) -> str:
        return facts_table("Partition", self._facts)

    @property
    def _facts(self) -> dict[str, Any]:
        sizes = self.sizes
        facts: dict[str, Any] = {"clients": len(self), "samples": int(sizes.sum())}
        if len(self):
            facts |= {"smallest": int(sizes.min()), "largest": int(sizes.max())}
        options = {key: value for key, value in self.recipe.items() if key != "params"} | self.recipe.get("params", {})
        shown = {key: value if len(repr(value)) <= LONGEST_SHOWN else "…" for key, value in options.items()}
        return shown | facts

    def label_counts(self, labels: Array, classes: int) -> NDArray[np.int64]:
        """[clients, classes]: how many samples of each class each client holds."""
        held = labels[np.concatenate(self.clients)].astype(np.int64)
        cells = np.repeat(np.arange(len(self)), self.sizes) * classes + held
        return np.bincount(cells, minlength=len(self) * classes).reshape(len(self), classes)


def _array(values: Any) -> Any:
    if not isinstance(values, Tensor):
        return values
    values = values.detach().cpu()
    return values.float().numpy() if values.dtype == torch.bfloat16 else values.numpy()  # numpy has no bfloat16


def check_dataset(dataset: Dataset) -> None:
    """Raise `UserError` unless a data set has what partitions, networks and engines rely on."""
    whole(f"{dataset.name}'s classes", dataset.classes)
    for name, split in (("training", dataset.train), ("test", dataset.test)):
        _check_split(dataset, name, split)
    if dataset.test.x.shape[1:] != dataset.train.x.shape[1:]:
        raise UserError(
            f"{dataset.name}'s training samples have shape {dataset.shape} and its test samples "
            f"{tuple(dataset.test.x.shape[1:])}; they must be alike"
        )
    kinds = [made_of(dataset, split) for split in (dataset.train, dataset.test)]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"{dataset.name}'s training samples are {dataset.train.x.dtype}, which is {kinds[0]}, and its test samples "
            f"{dataset.test.x.dtype}, which is {kinds[1]}; give both as one type"
        )
    if dataset.task == "regression" and dataset.classes != 1:
        raise UserError(f"a regression has classes=1, not {dataset.classes}")
    if dataset.features and dataset.shape != (len(dataset.features),):
        raise UserError(
            f"{dataset.name} names {len(dataset.features)} features, and its samples have shape {dataset.shape}; "
            "name one for each number"
        )
    channels = dataset.shape[0] if dataset.shape else 1
    for name, values in (("mean", dataset.mean), ("std", dataset.std)):
        if len(values) not in (1, channels) or not np.isfinite(values).all():
            raise UserError(
                f"{dataset.name}'s {name} must be one finite number, or one for each of {channels} channels"
            )
    if min(dataset.std) <= 0:
        raise UserError(
            f"{dataset.name}'s std is {min(dataset.std):g}; samples are divided by it, so it must be above 0"
        )


def made_of(dataset: Dataset, split: Split) -> Literal["bytes", "words", "floats"]:
    """Return the kind of values in a split's samples, by their type."""
    if dataset.tokens or split.x.dtype in (np.int16, np.int32, np.int64):
        return "words"
    return "bytes" if split.x.dtype == np.uint8 else "floats"


def _check_split(dataset: Dataset, name: str, split: Split) -> None:
    if not isinstance(split, Split):
        part = "train" if name == "training" else "test"
        raise UserError(
            f"{dataset.name}'s {part} is {type(split).__name__}; give its {name} samples as a fedbraid.Split(x, y)"
        )
    for what, values in (("samples", split.x), ("labels", split.y)):
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
            kind = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
            raise UserError(
                f"{dataset.name}'s {name} {what} are {kind}; they must be a numpy array or a torch tensor of numbers"
            )
    if len(split.x) != len(split.y):
        raise UserError(f"{dataset.name} has {len(split.x)} {name} samples but {len(split.y)} labels")
    if not len(split):
        raise UserError(f"{dataset.name} has no {name} samples; give at least one")
    if split.y.ndim != 1:
        raise UserError(f"{dataset.name}'s {name} labels have shape {split.y.shape}; they must be one number each")
    if split.users is not None and len(split.users) != len(split):
        raise UserError(f"{dataset.name} has {len(split)} {name} samples but {len(split.users)} users")
    if dataset.task == "classification" and not np.issubdtype(split.y.dtype, np.integer):
        raise UserError(f"{dataset.name}'s {name} labels are {split.y.dtype}; class labels must be whole numbers")
    if dataset.task == "classification" and not 0 <= split.y.min() <= split.y.max() < dataset.classes:
        raise UserError(
            f"{dataset.name}'s {name} labels lie in {split.y.min()}..{split.y.max()}; "
            f"with {dataset.classes} classes they must lie in 0..{dataset.classes - 1}"
        )
    for what, values in (("sample", split.x), ("label", split.y)):
        index = _not_finite(values)
        if index is not None:
            raise UserError(f"{dataset.name}'s {name} {what} {index} is not finite (NaN or infinite); leave it out")


def _not_finite(values: Array) -> int | None:
    """The first row that holds a number which is not finite; read in blocks, since arrays may be larger than memory."""
    if values.dtype.kind != "f":
        return None
    block = max(1, (64 << 20) // max(1, values[:1].nbytes))
    for start in range(0, len(values), block):
        fine = np.isfinite(values[start : start + block]).reshape(len(values[start : start + block]), -1).all(axis=1)
        if not fine.all():
            return start + int(np.argmin(fine))
    return None


def check_partition(dataset: Dataset, partition: Partition) -> None:
    """Raise `UserError` unless every client has samples of its own that exist."""
    if not len(partition):
        raise UserError("the partition has no clients; give at least one")
    groups = [("training", partition.clients, len(dataset.train))]
    groups += [("test", partition.client_tests, len(dataset.test))] if partition.client_tests is not None else []
    for name, shares, total in groups:
        if len(shares) != len(partition):
            raise UserError(f"the partition has {len(partition)} clients, but {name} samples of {len(shares)}")
        for k, own in enumerate(map(np.asarray, shares)):
            if not len(own) and name == "training":
                raise UserError(f"client {k} has no samples; leave it out of the partition")
            if len(own) and own.dtype.kind not in "iu":
                raise UserError(f"client {k}'s {name} samples must be whole numbers, not {own.dtype}")
        held = np.concatenate([own for own in shares if len(own)] or [np.zeros(0, dtype=np.int64)])
        outside = np.flatnonzero((held < 0) | (held >= total))
        if len(outside):
            k = np.searchsorted(np.cumsum([len(own) for own in shares]), outside[0], side="right")
            raise UserError(
                f"client {k} holds {name} sample {held[outside[0]]}, but {dataset.name} has 0 to {total - 1}"
            )
        if name == "training":
            _check_apart(shares, held, total)
    if partition.noise is not None and len(partition.noise) != len(partition):
        raise UserError(f"the partition has {len(partition)} clients, but noise for {len(partition.noise)}")


def _check_apart(shares: Sequence[Array], held: Array, total: int) -> None:
    """That every sample is somebody's alone: one that two clients hold would count twice in every mean."""
    shared = np.flatnonzero(np.bincount(held, minlength=total) > 1)
    if not len(shared):
        return
    sample = int(shared[0])
    holders = [k for k, own in enumerate(shares) for _ in range(int((np.asarray(own) == sample).sum()))]
    first, second = holders[:2]
    who = f"client {first} holds training sample {sample} twice"
    if first != second:
        who = f"clients {first} and {second} both hold training sample {sample}"
    raise UserError(
        f"{who} (held more than once in all: {len(shared)}); where that is meant, repeat them in the data set"
    )
