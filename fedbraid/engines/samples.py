"""A data set on the device, and the clients' parts of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.data.dataset import Dataset, Partition, Split


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and labels. Bytes stay bytes and are normalised as they are used; floats are normalised once.

    Other integers are tokens and stay as they are.
    """

    x: Tensor
    y: Tensor
    classes: int  # 0 for regression
    shift: Tensor | None
    scale: Tensor | None
    dtype: torch.dtype

    @staticmethod
    def of(dataset: Dataset, split: Split, dtype: torch.dtype, device: torch.device) -> Samples:
        x = torch.as_tensor(np.ascontiguousarray(split.x)).to(device)
        regression = dataset.task == "regression"
        y = torch.as_tensor(np.ascontiguousarray(split.y)).to(device, dtype if regression else torch.int64)
        axes = (-1,) + (1,) * (x.dim() - 2) if len(dataset.mean) > 1 else (1,) * (x.dim() - 1)
        shift, scale = (torch.tensor(v, device=device, dtype=dtype).reshape(axes) for v in (dataset.mean, dataset.std))
        classes = 0 if regression else dataset.classes
        plain = bool((shift == 0).all() and (scale == 1).all())
        if x.is_floating_point():
            x = x.to(dtype)
            return Samples(x if plain else (x - shift) / scale, y, classes, None, None, dtype)
        return Samples(x, y, classes, None if plain else shift, None if plain else scale, dtype)

    def __len__(self) -> int:
        return len(self.y)

    def inputs(self, index: Tensor) -> Tensor:
        x = self.x[index]
        if x.dtype != torch.uint8:  # floats are ready; other integers are tokens
            return x
        x = x.to(self.dtype)
        return x if self.shift is None or self.scale is None else (x - self.shift) / self.scale

    def targets(self, index: Tensor) -> Tensor:
        """Labels as shares of 1 per class, or the numbers of a regression."""
        if not self.classes:
            return self.y[index]
        return torch.eye(self.classes, device=self.y.device, dtype=self.dtype)[self.y[index]]

    def batch(self, index: Tensor, mask: Tensor) -> Batch:
        return Batch(self.inputs(index), self.targets(index), mask)


LABEL_RANGES = 10
"""A regression's labels are counted in so many ranges, each with about as many samples."""


def ranges(labels: np.ndarray) -> np.ndarray:
    """Which range each label of a regression lies in."""
    edges = np.quantile(labels, np.arange(1, LABEL_RANGES) / LABEL_RANGES)
    return np.searchsorted(edges, labels, side="right")


@dataclass(frozen=True, eq=False)
class Clients:
    """Who holds which samples, on the device; client k's are `order[offsets[k] : offsets[k + 1]]`."""

    samples: Samples
    order: Tensor  # [n] indices into the samples, client by client
    offsets: np.ndarray  # [clients + 1]
    label_counts: Tensor  # [clients, classes]

    @staticmethod
    def of(dataset: Dataset, partition: Partition, dtype: torch.dtype, device: torch.device) -> Clients:
        samples = Samples.of(dataset, dataset.train, dtype, device)
        order = torch.as_tensor(np.concatenate(partition.clients)).to(device)
        if dataset.task == "classification":
            counts = torch.as_tensor(partition.label_counts(dataset.train.y, dataset.classes))
        else:
            counts = torch.as_tensor(partition.label_counts(ranges(dataset.train.y), LABEL_RANGES))
        offsets = np.concatenate([[0], np.cumsum(partition.sizes)])
        return Clients(samples, order, offsets, counts.to(device, dtype))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    def own(self, client: int) -> Tensor:
        """The indices of one client's samples."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]
