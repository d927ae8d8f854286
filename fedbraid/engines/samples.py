"""A data set on the device, and the clients' parts of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.augment import PREFIX, Augment
from fedbraid.core.batch import Batch
from fedbraid.core.plan import AS_THEY_ARE
from fedbraid.core.tree import Tree
from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.data.noise import noisy
from fedbraid.data.partitions.ranges import LABEL_RANGES, ranges


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and labels on the device. Bytes are normalised when used, floats once; texts are token numbers."""

    x: Tensor
    y: Tensor
    classes: int  # 0 for regression
    shift: Tensor | None  # None where nothing is left to normalise
    scale: Tensor | None
    dtype: torch.dtype
    is_text: bool = False
    augment: Augment = AS_THEY_ARE

    @staticmethod
    def of(
        dataset: Dataset,
        split: Split,
        dtype: torch.dtype,
        device: torch.device,
        augment: Augment = AS_THEY_ARE,
    ) -> Samples:
        x = torch.as_tensor(np.ascontiguousarray(split.x)).to(device)
        is_text = bool(dataset.tokens) or x.dtype in (torch.int16, torch.int32, torch.int64)
        augment.check(dataset.shape, x.dtype == torch.uint8, is_text)
        regression = dataset.task == "regression"
        y = torch.as_tensor(np.ascontiguousarray(split.y)).to(device, dtype if regression else torch.int64)
        axes = (-1,) + (1,) * (x.dim() - 2) if len(dataset.mean) > 1 else (1,) * (x.dim() - 1)
        shift, scale = (torch.tensor(v, device=device, dtype=dtype).reshape(axes) for v in (dataset.mean, dataset.std))
        made = Samples(x, y, 0 if regression else dataset.classes, shift, scale, dtype, is_text, augment)
        if is_text or bool((shift == 0).all() and (scale == 1).all()):
            return replace(made, shift=None, scale=None, x=x.to(dtype) if x.is_floating_point() else x)
        if x.is_floating_point() and not augment.active:
            return replace(made, x=made._normalised(x.to(dtype)), shift=None, scale=None)
        return made

    def __len__(self) -> int:
        return len(self.y)

    def at(self, index: Tensor) -> Samples:
        """Return the samples at `index` [n] alone."""
        return replace(self, x=picked(self.x, index), y=picked(self.y, index))

    @cached_property
    def labels(self) -> np.ndarray:
        """Labels `y` on the host."""
        labels: np.ndarray = self.y.cpu().numpy()
        return labels

    def inputs(self, index: Tensor) -> Tensor:
        """Return the network inputs [*index.shape, ...] of the samples at `index`."""
        x = picked(self.x, index)
        return x.long() if self.is_text else self._normalised(x.to(self.dtype))

    def training_inputs(self, index: Tensor, draws: Tree) -> Tensor:
        """The samples at `index` as a local step sees them: changed as `draws` (which begin with its axes) say."""
        if not self.augment.active:
            return self.inputs(index)
        images = picked(self.x, index.flatten())
        each = {key: value.flatten(0, index.dim() - 1) for key, value in draws.items() if key.startswith(PREFIX)}
        mean = images.new_zeros((), dtype=self.dtype) if self.shift is None else self.shift
        images = self._normalised(self.augment.apply(images, each, mean, self.dtype))
        return images.reshape(*index.shape, *images.shape[1:])

    def _normalised(self, x: Tensor) -> Tensor:
        return x if self.shift is None or self.scale is None else (x - self.shift) / self.scale

    def targets(self, index: Tensor) -> Tensor:
        """Return labels as shares of each class [*index.shape, C], or the values of a regression [*index.shape]."""
        if not self.classes:
            return picked(self.y, index)
        return picked(torch.eye(self.classes, device=self.y.device, dtype=self.dtype), picked(self.y, index))

    def batch(self, index: Tensor, mask: Tensor) -> Batch:
        return Batch(self.inputs(index), self.targets(index), mask)


def picked(rows: Tensor, index: Tensor) -> Tensor:
    """Return `rows[index]` by `index_select`, which is several times faster than indexing on a CPU."""
    if index.dim() == 1:
        return rows.index_select(0, index)
    return rows.index_select(0, index.flatten()).reshape(*index.shape, *rows.shape[1:])


@dataclass(frozen=True, eq=False)
class Clients:
    """The samples of each client on the device: client k holds `order[offsets[k] : offsets[k + 1]]`."""

    samples: Samples
    order: Tensor  # [n] indices into the samples, client by client
    offsets: np.ndarray  # [clients + 1]
    label_counts: Tensor  # [clients, classes]
    numbers: np.ndarray | None = None  # [clients] their numbers in the population; None = all clients, in order

    @staticmethod
    def of(
        dataset: Dataset,
        partition: Partition,
        dtype: torch.dtype,
        device: torch.device,
        augment: Augment = AS_THEY_ARE,
        samples: Samples | None = None,
    ) -> Clients:
        """The clients of a partition; `samples` are the data set's, where they are on the device already."""
        samples = samples or Samples.of(dataset, noisy(dataset, partition), dtype, device, augment)
        order = torch.as_tensor(np.concatenate(partition.clients)).to(device)
        if dataset.task == "classification":
            counts = torch.as_tensor(partition.label_counts(dataset.train.y, dataset.classes))
        else:
            counts = torch.as_tensor(partition.label_counts(ranges(dataset.train.y), LABEL_RANGES))
        offsets = np.concatenate([[0], np.cumsum(partition.sizes)])
        return Clients(samples, order, offsets, counts.to(device, dtype))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    def only(self, numbers: Sequence[int]) -> Clients:
        """Return the clients of these numbers, with their samples alone."""
        at = self.places(numbers)
        theirs = torch.cat([self.own(place) for place in at])
        order = torch.arange(len(theirs), device=theirs.device)
        offsets = np.concatenate([[0], np.cumsum(self.sizes[at])])
        whose = np.array(numbers, dtype=np.int64)
        return Clients(self.samples.at(theirs), order, offsets, self.label_counts[at], whose)

    def places(self, numbers: Iterable[int]) -> list[int]:
        """Return the positions here of the clients of these numbers."""
        return [int(k) for k in numbers] if self.numbers is None else [self._place[int(k)] for k in numbers]

    def numbered(self, places: Iterable[int]) -> list[int]:
        """Return the numbers of the clients at these positions: the inverse of `places`."""
        return [int(k) if self.numbers is None else int(self.numbers[k]) for k in places]

    @cached_property
    def _place(self) -> dict[int, int]:
        assert self.numbers is not None
        return {int(number): place for place, number in enumerate(self.numbers)}

    def own(self, client: int) -> Tensor:
        """Return the indices of one client's samples."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]
