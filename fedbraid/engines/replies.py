"""Replies that are already here, with a leading client axis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedbraid.core.local import FOR_THE_LOG, Work
from fedbraid.core.tree import Tree, nbytes


@dataclass(frozen=True, eq=False)
class Stacked:
    """A cohort's uploads as tensors [C, ...], in the cohort's order."""

    uploads: Tree
    work: Work
    frozen: int = 0  # parameters of the model that are not trained and need not be sent back
    came: np.ndarray | None = None  # places in the job's cohort that replied; None = all of them

    def each(self, key: str) -> Tensor:
        return self.uploads[key]

    def sum(self, key: str, weights: Tensor) -> Tensor:
        values = self.uploads[key]
        return (weights.to(values.dtype) @ values.reshape(len(weights), -1)).reshape(values.shape[1:])

    @property
    def bytes_up(self) -> int:
        """What the cohort sends back; numbers for the log do not count, nor do parameters that are not trained."""
        counted = {key: value for key, value in self.uploads.items() if key not in FOR_THE_LOG}
        model = self.uploads.get("model")
        still = 0 if model is None else self.frozen * len(model) * model.element_size()
        return nbytes(counted) - still
