"""A model as one flat vector, with named views into it.

Parameters, gradients, control variates, momenta and drifts are all vectors, so a strand reads like its paper
(`g + mu * (w - start)`) and every correction is one kernel. `benchmarks/vector_vs_tree.py` measures the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors that a flat vector [D] holds, in order and without gaps."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> Layout:
        return Layout(tuple(tensors), tuple(tuple(t.shape) for t in tensors.values()))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def told(self) -> list[list[Any]]:
        """Each tensor's name and shape, in plain values."""
        return [[name, list(shape)] for name, shape in zip(self.names, self.shapes, strict=True)]

    @property
    def size(self) -> int:
        """The length of the vector."""
        return sum(self.sizes)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the tensors of `vector` [D] by name as views; differentiable (the backward pass is one `cat`)."""
        if not self.names:
            return {}
        parts = torch.split(vector, list(self.sizes))
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the vector [D] of `tensors`: the inverse of `views`. Raises KeyError for a missing name."""
        if not self.names:
            return torch.empty(0)
        return torch.cat([tensors[name].reshape(-1) for name in self.names])

    def span(self, name: str) -> slice:
        """Return the slice of the vector that holds the tensor called `name`."""
        at = self.names.index(name)
        start = sum(self.sizes[:at])
        return slice(start, start + self.sizes[at])
