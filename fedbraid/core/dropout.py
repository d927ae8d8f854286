"""Dropout layers whose masks are computed from a key that is drawn for each client and local step.

torch's own layers draw from a global generator, so that a result would depend on who trained before. Here the index of
every number in its batch is hashed with the key: the same masks in any engine and on any device.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

DRAW = "network: key"
"""The name of a step's key among the plan's draws; no strand can have this name."""

WORD = 0xFFFFFFFF
APART = 0x9E3779B1, 0x85EBCA6B
"""Distances between the keys of two layers, and of two calls of a layer: odd, with bits everywhere."""


class KeyedDropout(nn.modules.dropout._DropoutNd):
    """Dropout with probability `p` from a key; `p` of 1 and in-place forms as in torch."""

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
        key = mix_words((self.key + self.number * APART[0] + self.calls * APART[1]) & WORD)
        self.calls += 1
        own = self.own_axes(x.dim())
        words = mix_words(mix_words(torch.arange(x.shape[:own].numel(), device=x.device)) ^ key)
        kept = (words >= self.p * 2**32).reshape(*x.shape[:own], *(1,) * (x.dim() - own))
        out = torch.where(kept, x / (1 - self.p), 0.0) if self.p < 1 else torch.zeros_like(x)
        return x.copy_(out) if self.inplace else out

    def own_axes(self, axes: int) -> int:
        """Return how many leading axes have separate masks: samples and channels; other axes are dropped as a whole."""
        return 1 if axes == self.unbatched else min(axes, 2)


class Dropout(KeyedDropout, nn.Dropout):
    def own_axes(self, axes: int) -> int:
        return axes


class Dropout1d(KeyedDropout, nn.Dropout1d):
    unbatched = 2


class Dropout2d(KeyedDropout, nn.Dropout2d):
    pass


class Dropout3d(KeyedDropout, nn.Dropout3d):
    unbatched = 4


KINDS: dict[type[nn.Module], type[KeyedDropout]] = {
    nn.Dropout: Dropout,
    nn.Dropout1d: Dropout1d,
    nn.Dropout2d: Dropout2d,
    nn.Dropout3d: Dropout3d,
}


def with_keyed_dropout(module: nn.Module) -> nn.Module:
    """Return a copy of `module` whose dropout layers take their masks from a key."""
    module, made = copy.deepcopy(module), dict[nn.Module, KeyedDropout]()
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if isinstance(layer, nn.modules.dropout._DropoutNd) and has_keyed_form(layer) and layer.p > 0:
            mine = made.setdefault(layer, KINDS[type(layer)](layer.p, layer.inplace, len(made)))
            module.set_submodule(name, mine.train(layer.training))
    return module


def has_keyed_form(layer: nn.Module) -> bool:
    return type(layer) in KINDS


def dropout_keys(module: nn.Module) -> tuple[str, ...]:
    return tuple(f"{name}.key" for name, layer in module.named_modules() if isinstance(layer, KeyedDropout))


def begin_pass(module: nn.Module) -> None:
    """Reset the call counters of dropout layers at the beginning of a forward pass."""
    for layer in module.modules():
        if isinstance(layer, KeyedDropout):
            layer.calls = 0


def draw(rng: np.random.Generator, steps: int) -> dict[str, np.ndarray]:
    """Draw a key for each local step: {DRAW: [steps]}."""
    return {DRAW: rng.integers(0, 2**32, steps)}


def mix_words(words: Tensor) -> Tensor:
    """Hash 32-bit words (in int64): each output bit depends on all input bits. No product exceeds 63 bits."""
    for _ in range(2):
        words = ((words ^ (words >> 16)) * 0x45D9F3B) & WORD
    return words ^ (words >> 16)
