"""Training images that change a little each time they are used.

What happens to an image is drawn with the plan, from the client's own stream; here it is applied to any number of
images at once, on their device. Crop, mirror and rotation only move pixels, so all three are one look-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.options import default
from fedbraid.core.tree import Tree
from fedbraid.errors import UserError

PREFIX = "images: "
"""What the plan calls these draws; no strand can be called so."""
COLOURS = ("brightness", "contrast", "saturation", "hue")


@dataclass(frozen=True)
class Augment:
    """How training images change, in this order. Nothing does unless it is asked for."""

    crop: int = 0  # pad by so many pixels on every side and cut the old size out at random
    crop_share: float = default(1.0, beside="crop")  # how many of the images are cropped (FedDyn and ASD: half of them)
    padding: Literal["zero", "mean", "reflect"] = default("zero", beside=("crop", "rotation"))  # mean: 0 if normalised
    flip: float = 0.0  # probability of being mirrored left to right
    flip_vertical: float = 0.0  # probability of being mirrored top to bottom
    rotation: float = 0.0  # degrees, at most so far to either side; corners are filled like the padding, or with zero
    brightness: float = 0.0  # times a factor from 1 - brightness to 1 + brightness
    contrast: float = 0.0  # the same, around the image's mean grey
    saturation: float = 0.0  # the same, around each pixel's grey
    hue: float = 0.0  # turned by a share of the colour circle from -hue to hue

    def __post_init__(self) -> None:
        if not 0 <= self.crop < 2**15:
            raise UserError(f"augment.crop is a number of pixels such as 4, not {self.crop}")
        for name in ("crop_share", "flip", "flip_vertical"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"augment.{name} is a probability from 0 to 1, not {getattr(self, name)}")
        for name, most in {"rotation": 180.0, "hue": 0.5}.items():
            if not 0 <= getattr(self, name) <= most:
                raise UserError(f"augment.{name} must lie between 0 and {most:g}, not {getattr(self, name)}")
        for name in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"augment.{name} must be 0 or more, such as 0.2, not {getattr(self, name)}")

    @property
    def recolours(self) -> bool:
        return any(getattr(self, name) for name in COLOURS)

    @cached_property
    def active(self) -> bool:
        return bool(self.crop or self.flip or self.flip_vertical or self.rotation or self.recolours)

    def check(self, shape: tuple[int, ...], is_bytes: bool, is_text: bool) -> None:
        """Refuses samples that this cannot change."""
        if not self.active:
            return
        if len(shape) != 3 or is_text:
            raise UserError(f"[augment] changes images (channels, height, width), not samples of shape {shape}")
        if self.padding == "reflect" and self.crop >= min(shape[1:]):
            raise UserError(
                f"augment.crop={self.crop} cannot be reflected in images of {shape[1]}x{shape[2]} pixels; "
                f"use at most {min(shape[1:]) - 1}"
            )
        if self.recolours and not is_bytes:
            raise UserError("augment's colours need images of bytes (0 to 255); these hold other numbers")
        if (self.saturation or self.hue) and shape[0] != 3:
            raise UserError(f"augment.saturation and augment.hue need three colours; these images have {shape[0]}")

    def draw(self, rng: np.random.Generator, steps: int, width: int) -> dict[str, np.ndarray]:
        """What happens to each image of each step. Sines are taken here, so that every device moves the same pixels."""
        each = (steps, width)
        drawn: dict[str, np.ndarray] = {}
        if self.crop:
            moved = rng.integers(-self.crop, self.crop + 1, (*each, 2), dtype=np.int16)
            drawn["shift"] = moved * (rng.random((*each, 1), dtype=np.float32) < self.crop_share)
        if self.flip or self.flip_vertical:
            drawn["flip"] = rng.random((*each, 2), dtype=np.float32) < np.array([self.flip_vertical, self.flip])
        if self.rotation:
            angle = np.deg2rad(rng.uniform(-self.rotation, self.rotation, each))
            drawn["turn"] = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        if self.recolours:
            spread = np.array([getattr(self, name) for name in COLOURS])
            low = np.where(np.arange(4) < 3, np.maximum(1 - spread, 0), -spread)
            high = np.where(np.arange(4) < 3, 1 + spread, spread)
            drawn["colour"] = rng.uniform(low, high, (*each, 4))
        return {PREFIX + name: value for name, value in drawn.items()}

    def apply(self, x: Tensor, draws: Tree, mean: Tensor, dtype: torch.dtype) -> Tensor:
        """Images [N, C, H, W] of bytes or numbers, not normalised, as this step's `draws` [N, ...] change them."""
        mine = {key.removeprefix(PREFIX): value for key, value in draws.items() if key.startswith(PREFIX)}
        x = self._moved(x, mine, mean, dtype)
        return self._recoloured(x, mine["colour"]) if self.recolours else x

    def _moved(self, x: Tensor, draws: Tree, mean: Tensor, dtype: torch.dtype) -> Tensor:
        """Every pixel of the result looks up where it came from: back through rotation, mirror and crop."""
        height, width = x.shape[-2:]
        down, right = torch.arange(height, device=x.device)[:, None], torch.arange(width, device=x.device)
        outside = torch.zeros((), dtype=torch.bool, device=x.device)
        if "turn" in draws:
            cos, sin = draws["turn"][:, :, None, None].unbind(1)
            v, u = down + 0.5 - height / 2, right + 0.5 - width / 2  # from the middle of the image
            down = (sin * u + cos * v + height / 2).floor().long()
            right = (cos * u - sin * v + width / 2).floor().long()
            outside = (down < 0) | (down >= height) | (right < 0) | (right >= width)
            down, right = down.clamp(0, height - 1), right.clamp(0, width - 1)
        if "flip" in draws:
            vertical, level = draws["flip"][:, :, None, None].unbind(1)
            down = torch.where(vertical, height - 1 - down, down)
            right = torch.where(level, width - 1 - right, right)
        if "shift" in draws:
            below, beside = draws["shift"][:, :, None, None].unbind(1)
            down, right = down + below, right + beside
            if self.padding == "reflect":
                down = height - 1 - (height - 1 - down.abs()).abs()
                right = width - 1 - (width - 1 - right.abs()).abs()
            else:
                outside = outside | (down < 0) | (down >= height) | (right < 0) | (right >= width)
                down, right = down.clamp(0, height - 1), right.clamp(0, width - 1)
        if not draws.keys() & {"turn", "flip", "shift"}:
            return x.to(dtype)
        source = (down * width + right).expand(len(x), height, width).reshape(len(x), 1, -1)
        x = x.flatten(2).gather(2, source.expand(-1, x.shape[1], -1)).reshape(x.shape).to(dtype)
        fill = mean if self.padding == "mean" else torch.zeros((), dtype=dtype, device=x.device)
        return torch.where(outside.expand(len(x), height, width)[:, None], fill, x)

    def _recoloured(self, x: Tensor, colour: Tensor) -> Tensor:
        brightness, contrast, saturation, hue = colour[:, :, None, None, None].unbind(1)
        if self.brightness:
            x = (brightness * x).clamp(0, 255)
        if self.contrast:
            middle = _grey(x).mean((1, 2, 3), keepdim=True)
            x = (middle + contrast * (x - middle)).clamp(0, 255)
        if self.saturation:
            grey = _grey(x)
            x = (grey + saturation * (x - grey)).clamp(0, 255)
        return _hue_turned(x, hue) if self.hue else x


def _grey(x: Tensor) -> Tensor:
    """[N, 1, H, W] how bright each pixel looks."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    red, green, blue = _channels(x)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _channels(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x[:, :1], x[:, 1:2], x[:, 2:]


def _hue_turned(x: Tensor, turn: Tensor) -> Tensor:
    """The hue moved by `turn` of the colour circle; brightness (the largest colour) and saturation stay."""
    red, green, blue = _channels(x)
    most, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    spread = most - least
    safe = torch.where(spread > 0, spread, 1)
    sixth = torch.where(
        most == red,
        (green - blue) / safe,
        torch.where(most == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    sixth = sixth + 6 * turn

    def channel(offset: int) -> Tensor:
        k = (offset + sixth) % 6
        return most - spread * torch.minimum(k, 4 - k).clamp(0, 1)

    return torch.cat([channel(5), channel(3), channel(1)], dim=1)
