"""Inputs and outputs of a trained model: all that must be known to use it on other data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedbraid.core.task import Task
from fedbraid.core.typed import structured
from fedbraid.data.dataset import Dataset, Split, made_of
from fedbraid.errors import UserError, first_line
from fedbraid.storage.files import damaged

FILE = "inputs.json"
"""What it is called in a run's directory."""


@dataclass(frozen=True)
class Inputs:
    """A data set without its samples."""

    task: Task
    shape: tuple[int, ...]  # of one sample
    classes: int
    numbers: Literal["", "bytes", "words", "floats"] = ""  # what samples are made of; "" = nobody said
    features: tuple[str, ...] = ()  # the columns of a table, in their order
    labels: tuple[str, ...] = ()  # the classes' names
    mean: tuple[float, ...] = ()  # the network takes (x - mean) / std; () = each client had numbers of its own
    std: tuple[float, ...] = ()
    target: tuple[float, ...] = ()  # of a regression: its answers times target[1] plus target[0]; () = as they are
    tokens: tuple[str, ...] = ()  # of texts: what each number stands for

    @staticmethod
    def of(dataset: Dataset) -> Inputs:
        return Inputs(
            dataset.task,
            dataset.shape,
            dataset.classes,
            made_of(dataset, dataset.train),
            dataset.features,
            dataset.labels,
            tuple(map(float, dataset.mean)),
            tuple(map(float, dataset.std)),
            dataset.target if dataset.task == "regression" else (),
            dataset.tokens,
        )

    @staticmethod
    def read(values: Mapping[str, Any]) -> Inputs:
        return structured({key: value for key, value in values.items() if key != "about"}, Inputs, "")

    @staticmethod
    def read_file(file: Path) -> Inputs:
        """Read the inputs that a run recorded; a damaged file is refused by name."""
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            inputs = Inputs.read(values)
            if any(size < 1 for size in inputs.shape) or inputs.classes < 1:
                raise UserError("its shape or its classes are not positive")
        except (OSError, ValueError, TypeError, AttributeError, UserError) as error:
            raise damaged(file, first_line(error)) from None
        return inputs

    def to_json(self) -> dict[str, Any]:
        """As it is written, with a word for whoever reads it."""
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return {"about": self.about} | values

    @property
    def about(self) -> str:
        if self.tokens:
            return "the network takes the numbers of tokens, which are their places in `tokens`"
        columns = "the columns in the order of `features`, " if self.features else ""
        if self.mean:
            return f"the network takes {columns}(x - mean) / std, one mean and std for each channel or one for all"
        return (
            f"the network takes {columns}each scaled as its client's own data set does it: the clients were given no "
            "data.mean and data.std in common, and did not tell theirs"
        )

    def holding(self, x: np.ndarray) -> Dataset:
        """Samples as a data set of this kind; their labels are made up."""
        y = np.zeros(len(x), dtype=np.int64 if self.task == "classification" else np.float32)
        split = Split(x, y)
        mean, std = self.mean or (0.0,), self.std or (1.0,)
        return Dataset("these samples", split, split, self.classes, self.task, mean, std, self.labels, self.tokens)

    def blank(self) -> Dataset:
        """Two samples of zeros: enough to build a network for."""
        kind = {"words": np.int64, "bytes": np.uint8}.get(self.numbers, np.float32)
        return self.holding(np.zeros((2, *self.shape), dtype=kind))
