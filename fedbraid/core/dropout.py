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
KINDS: dict[type[nn.Module], int] = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
"""The layers that there are, and how many of their inputs' last axes are left out as one."""

WORD = 0xFFFFFFFF
APART = 0x9E3779B1, 0x85EBCA6B
"""Between the keys of two layers, and of two calls of a layer: odd, with bits everywhere."""


class Dropout(nn.Module):
    """Leaves numbers out with probability `rate`, and makes the others larger by as much."""

    key: Tensor

    def __init__(self, rate: float, together: int, number: int) -> None:
        super().__init__()
        self.rate, self.together, self.number = rate, together, number
        self.calls = 0  # in this forward pass: a layer that is used twice has two masks
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        axes = x.shape[: x.dim() - self.together]
        key = _stirred((self.key + self.number * APART[0] + self.calls * APART[1]) & WORD)
        self.calls += 1
        words = _stirred(_stirred(torch.arange(axes.numel(), device=x.device)) ^ key)
        kept = (words >= self.rate * 2**32).reshape(*axes, *(1,) * self.together)
        return torch.where(kept, x / (1 - self.rate), 0.0) if self.rate < 1 else torch.zeros_like(x)

    def extra_repr(self) -> str:
        return f"rate={self.rate}, together={self.together}"


def planned(module: nn.Module) -> nn.Module:
    """A copy whose layers of dropout take their masks from a key."""
    module, made = copy.deepcopy(module), dict[nn.Module, Dropout]()
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if rate := rate_of(layer):
            mine = made.setdefault(layer, Dropout(rate, KINDS[type(layer)], len(made)))
            module.set_submodule(name, mine)
    return module


def rate_of(layer: nn.Module) -> float:
    """How much a layer leaves out, if it is one that can be planned."""
    return layer.p if isinstance(layer, nn.modules.dropout._DropoutNd) and type(layer) in KINDS else 0.0


def keys_of(module: nn.Module) -> tuple[str, ...]:
    return tuple(f"{name}.key" for name, layer in module.named_modules() if isinstance(layer, Dropout))


def begin_pass(module: nn.Module) -> None:
    """The next call of each layer of dropout is its first one."""
    for layer in module.modules():
        if isinstance(layer, Dropout):
            layer.calls = 0


def draw(rng: np.random.Generator, steps: int) -> dict[str, np.ndarray]:
    """A key for each local step."""
    return {DRAW: rng.integers(0, 2**32, steps)}


def _stirred(words: Tensor) -> Tensor:
    """32 bits in, 32 bits out, each depending on all of them. No product has more than 63."""
    for _ in range(2):
        words = ((words ^ (words >> 16)) * 0x45D9F3B) & WORD
    return words ^ (words >> 16)
