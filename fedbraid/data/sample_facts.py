"""Facts about a federation's samples that its server and its clients agree on without showing one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np

from fedbraid.core.task import Task
from fedbraid.core.typed import structured
from fedbraid.data.dataset import Array, Dataset, Split, made_of
from fedbraid.data.partitions.ranges import LABEL_RANGES, edges
from fedbraid.errors import UserError

AS_THEY_ARE = (0.0, 1.0)
"""Mean and deviation of labels from which nothing is taken out."""
BY_CLIENTS = "clients"
"""The name of data of which the server has none: `data.shape`, `data.classes` … then tell what they are like."""


class OwnMatter(UserError):
    """An error of a client's data; the server receives no more than `told` of it."""

    def __init__(self, sentence: str, told: str) -> None:
        super().__init__(sentence)
        self.told = f"{told}; its own log says more"


@dataclass(frozen=True)
class Facts:
    """Samples without the samples."""

    shape: tuple[int, ...]
    classes: int = 0  # 0 = as many as there are labels, or 1 for a regression
    task: Task = "classification"
    labels: tuple[str, ...] = ()  # the classes' names; () = they go by number
    tokens: tuple[str, ...] = ()  # of texts: what each number stands for
    features: tuple[str, ...] = ()  # of tables: the names of the columns; () = they have none
    words: int = 0  # of texts whose tokens have no names: how many there are
    numbers: Literal["", "bytes", "words", "floats"] = ""  # what samples are made of; "" = not said
    mean: tuple[float, ...] = ()  # what samples are normalised with; () = each client's own
    std: tuple[float, ...] = ()
    target: tuple[float, ...] = ()  # of a regression: mean and deviation taken out of its labels; () = none are
    ranges: tuple[float, ...] = ()  # of a regression: where the ranges of its labels end; () = each client's own

    def __post_init__(self) -> None:
        if self.features and (self.shape != (len(self.features),) or len(set(self.features)) < len(self.features)):
            raise UserError("data.features are different names of columns, one for each number of data.shape")
        if not self.shape or min(self.shape) < 1 or prod(self.shape) > 2**31:
            raise UserError(f"data.shape is the shape of one sample, such as [1, 28, 28], not {list(self.shape)}")
        if not self.classes:
            object.__setattr__(self, "classes", len(self.labels) if self.task == "classification" else 1)
        if self.classes < (1 if self.task == "regression" else 2) or len(self.labels) not in (0, self.classes):
            raise UserError("data.classes says how many classes there are, or data.labels what they are called")
        if not self.tokens and self.words:
            object.__setattr__(self, "tokens", tuple(map(str, range(self.words))))
        channels = {len(self.mean), len(self.std)}
        if len(channels) > 1 or not channels <= {0, 1, self.shape[0]} or min(self.std, default=1) <= 0:
            raise UserError("data.mean and data.std have one number, or one for each channel; std is above 0")
        if self.target and (self.task != "regression" or len(self.target) != 2 or self.target[1] <= 0):
            raise UserError("data.target is the mean and the deviation of a regression's labels; the latter is above 0")
        if self.ranges and (len(self.ranges) != LABEL_RANGES - 1 or list(self.ranges) != sorted(self.ranges)):
            raise UserError(f"data.ranges are {LABEL_RANGES - 1} numbers in order, between the ranges of labels")

    @staticmethod
    def of(dataset: Dataset) -> Facts:
        """Return the facts of the server's own samples, by which clients' samples are prepared alike."""
        return Facts(
            shape=dataset.shape,
            classes=dataset.classes,
            task=dataset.task,
            labels=dataset.labels,
            tokens=dataset.tokens,
            features=dataset.features,
            numbers=made_of(dataset, dataset.train),
            mean=tuple(map(float, dataset.mean)),
            std=tuple(map(float, dataset.std)),
            target=dataset.target if dataset.target != AS_THEY_ARE else (),
            ranges=tuple(edges(dataset.train.y).tolist()) if dataset.task == "regression" else (),
        )

    @staticmethod
    def read(values: Mapping[str, Any]) -> Facts:
        """The inverse of `told`, or a user's own words."""
        features = values.get("features")
        if "shape" not in values and isinstance(features, list | tuple):
            values = {**values, "shape": [len(features)]}
        if "shape" not in values:
            raise UserError(
                f"data.name={BY_CLIENTS} needs data.shape, the shape of one sample, such as [1, 28, 28], or for tables "
                "data.features, the names of their columns"
            )
        return structured(values, Facts, "data.")

    def told(self) -> dict[str, Any]:
        """Plain values. What there was not in earlier versions is not spoken of where it is not there."""
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return {key: value for key, value in values.items() if value or key not in ("features", "target")}

    def made_up(self) -> Dataset:
        """Two samples of zeros: enough to find out what a network and a method make of them."""
        kind = {"words": np.int64, "bytes": np.uint8}.get("words" if self.tokens else self.numbers, np.float32)
        y = np.zeros(2, dtype=np.int64 if self.task == "classification" else np.float32)
        split = Split(np.zeros((2, *self.shape), dtype=kind), y)
        return self._alike(Dataset("the clients' data", split, split, self.classes, self.task))

    def fitted(self, dataset: Dataset) -> Dataset:
        """A client's own samples as the federation takes them, or a sentence on why they are not of its kind."""
        dataset = self._ordered(dataset)
        if dataset.shape != self.shape:
            raise UserError(f"its samples have shape {list(dataset.shape)}, and the federation's {list(self.shape)}")
        if dataset.task != self.task:
            raise UserError(f"its data are for {dataset.task}, and the federation learns {self.task}")
        if dataset.tokens != self.tokens[: len(dataset.tokens)] or bool(dataset.tokens) != bool(self.tokens):
            raise UserError("its texts are not made of the federation's words, in their order")
        if self.mean and self.numbers and (mine := made_of(dataset, dataset.train)) != self.numbers:
            raise UserError(f"its samples are made of {mine}, and the federation's of {self.numbers}")
        return self._alike(replace(dataset, train=self._named(dataset, "train"), test=self._named(dataset, "test")))

    def _alike(self, dataset: Dataset) -> Dataset:
        alike = replace(dataset, classes=self.classes, labels=self.labels, tokens=self.tokens, features=self.features)
        alike = replace(alike, target=(self.target[0], self.target[1])) if self.target else alike
        return replace(alike, mean=self.mean, std=self.std) if self.mean else alike

    def _ordered(self, dataset: Dataset) -> Dataset:
        """The columns of a table as the federation has them, by their names; those that it has not are left out.

        Columns of which only the order is known are nobody's to compare, so they go with others of the kind alone.
        """
        if dataset.features == self.features:
            return dataset
        if not self.features:
            others = f"the columns have names ({_few(dataset.features)}), and the federation's have none"
            raise OwnMatter(
                f"{others}; the server says which they are by data.features={_quoted(dataset.features)}",
                "its columns have names, which the server must say by data.features",
            )
        if not dataset.features:
            raise UserError(
                f"its columns have no names to tell them by, and the federation's have ({_few(self.features)}); "
                "a CSV or Parquet file has"
            )
        lacking = [name for name in self.features if name not in dataset.features]
        if lacking:
            raise OwnMatter(
                f"there is no column {lacking[0]!r}, which the federation has; the columns here are "
                f"{', '.join(dataset.features)}",
                f"it has no column {lacking[0]!r}",
            )
        places = [dataset.features.index(name) for name in self.features]
        train, test = (replace(split, x=split.x[:, places]) for split in (dataset.train, dataset.test))
        mean, std = (
            values if len(values) == 1 else tuple(values[k] for k in places) for values in (dataset.mean, dataset.std)
        )
        return replace(dataset, features=self.features, train=train, test=test, mean=mean, std=std)

    def _named(self, dataset: Dataset, part: Literal["train", "test"]) -> Split:
        """A split whose classes are numbered as the federation's are. By name, where they have names."""
        split: Split = getattr(dataset, part)
        if self.task == "regression":
            return replace(split, y=self._in_its_units(split.y, dataset.target))
        if dataset.labels and not self.labels:
            names = f"the classes have names ({_few(dataset.labels)}), and the federation's have none"
            raise OwnMatter(names, "its classes have names, and the federation's have none")
        if dataset.labels:
            unknown = [label for label in dataset.labels if label not in self.labels]
            if unknown:
                others = f"there is a class {unknown[0]!r}, which the federation ({_few(self.labels)}) has not"
                raise OwnMatter(others, "it has a class that the federation has not")
            return replace(split, y=np.array([self.labels.index(label) for label in dataset.labels])[split.y])
        if int(split.y.max()) >= self.classes:
            raise UserError(f"it has class {int(split.y.max())}, and the federation's are 0 to {self.classes - 1}")
        return split

    def _in_its_units(self, y: Array, own: tuple[float, float]) -> Array:
        """A client's labels less the mean and over the deviation that everybody's are."""
        if own == (self.target or AS_THEY_ARE):
            return y
        if not self.target:
            raise UserError(
                "its labels are scaled by its own mean and deviation, so that clients would not mean the same by them; "
                "the server says data.target=[MEAN, DEVIATION] for all, or the client sets data.standardise=false"
            )
        mean, deviation = self.target
        scaled: Array = ((y.astype(np.float64) * own[1] + own[0] - mean) / deviation).astype(np.float32)
        return scaled


def _quoted(names: tuple[str, ...]) -> str:
    """As `--set` takes it."""
    return "[" + ",".join(f'"{name}"' for name in names) + "]"


def _few(labels: tuple[str, ...]) -> str:
    return ", ".join(labels[:3]) + (", …" if len(labels) > 3 else "")
