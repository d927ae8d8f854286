"""Dropout whose masks are computed from a key that is drawn for each client and local step.

torch's own layers draw from a generator that all share, so that a result would depend on who trained before. Here
every number's place in its batch is stirred with the key: the same masks in any engine and on any device.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

DRAW = "network: key"
"""What the plan calls a step's key; no strand can be called so."""

WORD = 0xFFFFFFFF
APART = 0x9E3779B1, 0x85EBCA6B
"""Between the keys of two layers, and of two calls of a layer: odd, with bits everywhere."""


class Planned(nn.modules.dropout._DropoutNd):
    """Leaves numbers out with probability `p`, and makes the others larger by as much."""

    key: Tensor
    unbatched: int = 0  # axes of an input that torch takes for a single sample's

    def __init__(self, p: float, inplace: bool, number: int) -> None:
        super().__init__(p, inplace)
        self.number = number
        self.calls = 0  # in this forward pass: a layer that is used twice has two masks
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        key = _stirred((self.key + self.number * APART[0] + self.calls * APART[1]) & WORD)
        self.calls += 1
        own = self.own_axes(x.dim())
        words = _stirred(_stirred(torch.arange(x.shape[:own].numel(), device=x.device)) ^ key)
        kept = (words >= self.p * 2**32).reshape(*x.shape[:own], *(1,) * (x.dim() - own))
        out = torch.where(kept, x / (1 - self.p), 0.0) if self.p < 1 else torch.zeros_like(x)
        return x.copy_(out) if self.inplace else out

    def own_axes(self, axes: int) -> int:
        """How many of the first axes have a mask of their own: samples and channels, the others go as a whole."""
        return 1 if axes == self.unbatched else min(axes, 2)


class Dropout(Planned, nn.Dropout):
    def own_axes(self, axes: int) -> int:
        return axes


class Dropout1d(Planned, nn.Dropout1d):
    unbatched = 2


class Dropout2d(Planned, nn.Dropout2d):
    pass


class Dropout3d(Planned, nn.Dropout3d):
    unbatched = 4


KINDS: dict[type[nn.Module], type[Planned]] = {
    nn.Dropout: Dropout,
    nn.Dropout1d: Dropout1d,
    nn.Dropout2d: Dropout2d,
    nn.Dropout3d: Dropout3d,
}


def planned(module: nn.Module) -> nn.Module:
    """A copy whose layers of dropout take their masks from a key."""
    module, made = copy.deepcopy(module), dict[nn.Module, Planned]()
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if isinstance(layer, nn.modules.dropout._DropoutNd) and can_be_planned(layer) and layer.p > 0:
            mine = made.setdefault(layer, KINDS[type(layer)](layer.p, layer.inplace, len(made)))
            module.set_submodule(name, mine.train(layer.training))
    return module


def can_be_planned(layer: nn.Module) -> bool:
    return type(layer) in KINDS


def keys_of(module: nn.Module) -> tuple[str, ...]:
    return tuple(f"{name}.key" for name, layer in module.named_modules() if isinstance(layer, Planned))


def begin_pass(module: nn.Module) -> None:
    """The next call of each layer of dropout is its first one."""
    for layer in module.modules():
        if isinstance(layer, Planned):
            layer.calls = 0


def draw(rng: np.random.Generator, steps: int) -> dict[str, np.ndarray]:
    """A key for each local step."""
    return {DRAW: rng.integers(0, 2**32, steps)}


def _stirred(words: Tensor) -> Tensor:
    """32 bits in, 32 bits out, each depending on all of them. No product has more than 63."""
    for _ in range(2):
        words = ((words ^ (words >> 16)) * 0x45D9F3B) & WORD
    return words ^ (words >> 16)
