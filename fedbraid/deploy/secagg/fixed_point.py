"""Real numbers as whole numbers modulo 2⁶⁴, where masks can hide them and sums are exact."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbraid.deploy.secagg.protocol import ProtocolError

Numbers = NDArray[np.uint64]
"""A vector modulo 2⁶⁴."""

ROOM = 62
"""The sum of all clients' numbers stays within ±2^ROOM, rounding included."""


@dataclass(frozen=True)
class FixedPoint:
    """Numbers of at most `bound` in size, as multiples of a power of two so small that so many clients never wrap."""

    bound: float
    clients: int

    def __post_init__(self) -> None:
        if not 1e-200 <= self.bound <= 1e200 or self.clients < 1:
            raise ValueError(f"there are no fixed-point numbers up to {self.bound} for {self.clients} clients")

    @property
    def scale(self) -> float:
        """The largest power of two with clients · bound · scale ≤ 2^ROOM: between half of that and all of it."""
        return math.ldexp(1.0, math.frexp(2.0**ROOM / (self.clients * self.bound))[1] - 1)

    @property
    def error(self) -> float:
        """Largest error of the sum: half a step for each client, at most clients² · bound / 2^ROOM.

        Multiples of 1 / scale are exact, whole numbers among them while clients · bound ≤ 2^ROOM. As a float64 the
        sum itself has 53 bits.
        """
        return self.clients / 2 / self.scale

    def encode(self, values: ArrayLike, weight: float = 1.0) -> Numbers:
        """`weight` times `values`; refused beyond the bound, where a sum could wrap unseen."""
        weighted = weight * np.asarray(values, dtype=np.float64).reshape(-1)
        largest = float(np.abs(weighted).max(initial=0.0))
        if not largest <= self.bound:
            raise ProtocolError(f"a value of {largest:.6g} is beyond the bound of {self.bound:.6g} that was agreed on")
        return np.rint(weighted * self.scale).astype(np.int64).view(np.uint64)

    def decode(self, total: Numbers) -> NDArray[np.float64]:
        """Return the sum as real numbers."""
        return total.view(np.int64) / self.scale
