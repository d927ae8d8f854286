"""Random numbers of a forward pass, computed from the key of a client's local step.

Number i of call c is a hash of (key, c, coordinates of i). It depends neither on the sizes of the axes nor on who else
trains, so that padding a batch, stacking clients and moving to a GPU change no number. A hash of the flat index would:
with the batch on the second axis (sequences first), padding the batch shifts the flat indices of all other samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedbraid.core.dropout import WORD, mix_words

CALL_DISTANCE = 0xC2B2AE35
"""Distance between the keys of two calls; differs from those of dropout layers, whose masks have keys of their own."""
COORDINATE = 0x9E3779B1
"""Odd factor that spreads neighbouring coordinates over all 32 bits."""
FINE = 24
"""Bits of a uniform number: all that float32 keeps, so that rounding never gives 1."""


class KeyedDraws:
    """The random numbers of one forward pass. Each call of a method is one draw, counted in the order of the calls."""

    def __init__(self, key: Tensor) -> None:
        """Begin a pass with `key` [], an integer tensor."""
        self.key = key
        self.calls = 0

    def words(self, shape: Sequence[int]) -> Tensor:
        """Return 32-bit words (int64) of `shape`."""
        self.calls += 1
        words = mix_words((self.key + self.calls * CALL_DISTANCE) & WORD)
        for size in shape:  # one axis after another: the hash of a prefix of the coordinates is the seed of the next
            along = (torch.arange(size, device=words.device) * COORDINATE) & WORD
            words = mix_words(words.unsqueeze(-1) ^ along)
        return words

    def uniform(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return numbers from [0, 1) of `shape`."""
        fine = self.words(shape) >> (32 - FINE)
        return fine.to(dtype) / float(2**FINE)

    def normal(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return standard normal numbers of `shape` (Box and Muller, 1958)."""
        radius: Tensor = (-2 * (1 - self.uniform(shape, dtype)).log()).sqrt()
        angle: Tensor = 2 * math.pi * self.uniform(shape, dtype)
        return radius * angle.cos()

    def exponential(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return exponential numbers of rate 1 of `shape`."""
        return -(1 - self.uniform(shape, dtype)).log()

    def keep(self, shape: Sequence[int], p: float) -> Tensor:
        """Return a boolean mask of `shape` that is False with probability `p`."""
        return self.words(shape) >= p * 2**32

    def dropout(self, x: Tensor, p: float, axes: int | None = None) -> Tensor:
        """Return `x` with elements dropped with probability `p` and the others scaled by 1 / (1 - p).

        `axes`: number of leading axes with separate masks; the other axes are dropped as a whole. None: all axes.
        """
        if p == 0:
            return x
        if p == 1:
            return x * 0
        shape = x.shape if axes is None else (*x.shape[:axes], *(1,) * (x.dim() - axes))
        return torch.where(self.keep(shape, p), x / (1 - p), 0.0)
