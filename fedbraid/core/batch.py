"""The samples of one local step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """The samples of one local step. A padded sample has mask 0 and must not count in any loss."""

    x: Tensor  # [B, ...]
    y: Tensor  # [B, C] labels as shares (so that they can be mixed), or [B] numbers for regression
    mask: Tensor  # [B] 1 for a real sample, 0 for padding
    draws: Mapping[str, Tensor] = field(default_factory=dict)  # this step's "strand.name" draws

    def mean(self, values: Tensor) -> Tensor:
        """The mean of `values` [B, ...] over the real samples."""
        mask = self.mask.reshape(-1, *(1,) * (values.dim() - 1))
        return (values * mask).sum(0) / self.mask.sum().clamp(min=1)
