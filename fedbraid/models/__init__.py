"""Networks by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fedbraid.errors import UserError
from fedbraid.models.networks import SMALLEST_SIDE, Convolutional, Dense, Shape
from fedbraid.models.outputs import Outputs
from fedbraid.registry import Entry, find, whole

__all__ = ["Outputs", "build", "describe", "fitting", "names"]


def logistic(shape: Shape, classes: int) -> nn.Module:
    return Dense(shape, classes, ())


def mlp(shape: Shape, classes: int, hidden: Sequence[int] = (64,), projection: int = 0) -> nn.Module:
    if not isinstance(hidden, Sequence) or isinstance(hidden, str) or not hidden:
        raise UserError(f"hidden must be a list of layer widths such as [64], not {hidden!r}")
    widths = tuple(whole("each width in hidden", width) for width in hidden)
    return Dense(shape, classes, widths, whole("projection", projection, 0))


def lenet(shape: Shape, classes: int, projection: int = 0) -> nn.Module:
    return Convolutional(shape, classes, (6, 16), (120, 84), whole("projection", projection, 0))


def cnn(shape: Shape, classes: int, projection: int = 0) -> nn.Module:
    return Convolutional(shape, classes, (64, 64), (384, 192), whole("projection", projection, 0))


MODELS: tuple[Entry[nn.Module], ...] = (
    Entry("logistic", "logistic regression: one linear layer on the flattened input", logistic),
    Entry("mlp", "fully connected layers with ReLU, of the widths in hidden", mlp),
    Entry("lenet", "two convolutions of 6 and 16 channels, layers of 120 and 84 (MOON, FedSkip, FedDisco)", lenet),
    Entry("cnn", "two convolutions of 64 channels, layers of 384 and 192 (FedDyn, ASD)", cnn),
)
FOR_IMAGES = ("lenet", "cnn")


def build(
    name: str, shape: Sequence[int], classes: int, *, tokens: Sequence[str] = (), seed: int = 0, **options: Any
) -> nn.Module:
    """The network called `name` for samples of `shape`; `classes` is the width of its output.

    `tokens` are what the numbers in a text stand for; networks for texts need them, others refuse them.

    Weights are torch's default initialisation drawn from `seed` alone; torch's global generators stay as they were.
    """
    entry = find("model", name, MODELS, options)
    sides = tuple(whole("each side of a sample's shape", side) for side in shape)
    classes, seed = whole("classes", classes), whole("seed", seed, 0)
    fits = fitting(sides)
    if name not in fits:
        raise UserError(
            f"model {name!r} needs images (channels, height, width) of at least {SMALLEST_SIDE}x{SMALLEST_SIDE} "
            f"pixels, not samples of shape {sides}; models that fit: {', '.join(fits)}"
        )
    # On the CPU whatever the default device, and seeding its generator alone: torch.manual_seed would reseed the GPU's.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return entry.make(sides, classes, **options)


def fitting(shape: Sequence[int]) -> list[str]:
    """The names of the models that take samples of `shape`."""
    is_image = len(shape) == 3 and min(shape[1:]) >= SMALLEST_SIDE
    return [entry.name for entry in MODELS if is_image or entry.name not in FOR_IMAGES]


def names() -> list[str]:
    return [entry.name for entry in MODELS]


def describe() -> tuple[Entry[nn.Module], ...]:
    """Every model with its name, its summary and its options."""
    return MODELS
