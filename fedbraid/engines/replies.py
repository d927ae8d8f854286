"""Replies that are already here, with a leading client axis."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedbraid.core.local import TRAIN_LOSS, Work
from fedbraid.core.tree import Tree, nbytes


@dataclass(frozen=True, eq=False)
class Stacked:
    """A cohort's uploads as tensors [C, ...], in the cohort's order."""

    uploads: Tree
    work: Work

    def each(self, key: str) -> Tensor:
        return self.uploads[key]

    def sum(self, key: str, weights: Tensor) -> Tensor:
        values = self.uploads[key]
        return (weights.to(values.dtype) @ values.reshape(len(weights), -1)).reshape(values.shape[1:])

    @property
    def bytes_up(self) -> int:
        """What the cohort sends back; the training loss is a number for the log and does not count."""
        return nbytes({key: value for key, value in self.uploads.items() if key != TRAIN_LOSS})
