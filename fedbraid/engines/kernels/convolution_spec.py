"""Specification of a convolution, and split numbers for tensor cores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Pair = tuple[int, int]


@dataclass(frozen=True)
class Convolution:
    """Hyper-parameters of a convolution kernel."""

    stride: int = 1
    padding: int = 0
    pooled: bool = False  # followed by 2x2 max pooling and ReLU
    fine: bool = True  # by three products of bfloat16, which is nearly float32; else by one

    def size(self, x: Tensor, w: Tensor) -> Pair:
        """Return height and width of the outputs."""
        down, right = ((x.shape[side] + 2 * self.padding - w.shape[side]) // self.stride + 1 for side in (-2, -1))
        return (down // 2, right // 2) if self.pooled else (down, right)


@dataclass(frozen=True)
class SplitNumbers:
    """Numbers as the sum of two bfloat16 or as one: [clients, 2 or 1, ...].

    high + low keeps 16 bits of the significand, and three products of halves give nearly float32 at bfloat16 speed.
    """

    numbers: Tensor

    @staticmethod
    def empty(clients: int, fine: bool, *shape: int, device: torch.device) -> SplitNumbers:
        return SplitNumbers(torch.empty(clients, 1 + fine, *shape, dtype=torch.bfloat16, device=device))

    @property
    def fine(self) -> bool:
        return self.numbers.shape[1] == 2

    @property
    def high(self) -> Tensor:
        return self.numbers[:, 0]

    @property
    def low(self) -> Tensor:
        """The lower half; equals `high`, and must not be read, if there is one half only."""
        return self.numbers[:, -1]

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides between clients, samples, rows and columns."""
        return (self.numbers.stride(0), *self.numbers.stride()[2:-1])

    @property
    def channels(self) -> int:
        return self.numbers.shape[-1]
