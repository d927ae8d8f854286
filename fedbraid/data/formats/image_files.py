"""Image files decoded into one array, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedbraid.data.dataset import Array
from fedbraid.data.formats.progress_lines import Progress
from fedbraid.errors import UserError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
"""What Pillow may take a file for. Some of its other formats start programmes."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
LIMIT = 64 << 20
"""Pixels that a file may promise or a user ask for; Pillow refuses above about three times as many."""
BLOCK = 128
"""Images that a thread decodes before it takes the next ones."""

Channels = Literal[1, 3]


@dataclass(frozen=True)
class Frame:
    """The size and channels that every image is converted to.

    `fit` says how: "exact" accepts no other size, "crop" scales the shorter side and cuts the middle out of the
    longer one, "squash" scales both sides, each by its own factor.
    """

    channels: Channels
    height: int
    width: int
    fit: Literal["exact", "crop", "squash"] = "exact"

    def __post_init__(self) -> None:
        if self.height * self.width > LIMIT:
            raise UserError(f"images of {self.width} x {self.height} pixels are asked for; {LIMIT:,} are the most")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.height, self.width


def is_image(name: str) -> bool:
    """By its name; hidden files are none."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def native_frame(file: Path, channels: Channels) -> Frame:
    """The frame that keeps images of this one's size as they are."""
    width, height = _read(file, lambda image: image.size)
    return Frame(channels, height, width)


def decode_images(files: Sequence[Path], frame: Frame, out: Array) -> None:
    """Fills out[i] with image i, [channels, height, width]."""
    blocks = [slice(at, at + BLOCK) for at in range(0, len(files), BLOCK)]

    def fill(block: slice) -> int:
        for at, file in enumerate(files[block], block.start):
            out[at] = decode_image(file, frame)
        return len(files[block])

    progress = Progress(len(files), "images")
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow's decoders and filters run beside each other
        for count in pool.map(fill, blocks):  # the first mistake ends it: what has not begun is given up
            progress.add(count)


def decode_image(file: Path | BytesIO, frame: Frame) -> Array:
    """One image, [channels, height, width]. Of a file in memory, `str` should say where it came from."""
    framed: Array = _read(file, lambda image: _framed(file, image, frame))
    return framed


def _read(file: Path | BytesIO, use: Callable[[Any], Any]) -> Any:
    """Apply `use` to an opened image file. Its pixels are not decoded before their number is known to be bearable."""
    from PIL import Image  # only sets of image files should wait for it

    try:
        with Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > LIMIT:
                raise UserError(f"{file} promises {image.width} x {image.height} pixels; {LIMIT:,} are the most")
            return use(image)
    except UserError:
        raise
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UserError(f"{file} cannot be read ({error.strerror})") from error
    except Exception as error:  # damaged files make Pillow's decoders fail in many ways
        raise UserError(f"{file} cannot be decoded as an image ({error})") from error


def _framed(file: Path | BytesIO, image: Any, frame: Frame) -> Array:
    if image.mode[0] in "IF":
        raise UserError(f"{file} has pixels of more than 8 bits; save it with 8 bits for each channel")
    if image.mode in ("P", "PA"):  # transparent colours of a palette are understood only on the way over RGBA
        image = image.convert("RGBA")
    image = image.convert("L" if frame.channels == 1 else "RGB")
    if frame.fit == "exact" and (image.height, image.width) != (frame.height, frame.width):
        raise UserError(
            f"{file} has {image.width} x {image.height} pixels where {frame.width} x {frame.height} are expected; "
            "the data set 'folder' brings images to one size if its option pixels is given"
        )
    return _pixels(_resized(image, frame))


def _resized(image: Any, frame: Frame) -> Any:
    from PIL.Image import Resampling

    size = frame.width, frame.height
    box = _middle(image.size, size) if frame.fit == "crop" else None
    return image if image.size == size else image.resize(size, Resampling.BILINEAR, box)


def _middle(size: tuple[int, int], wanted: tuple[int, int]) -> tuple[float, float, float, float]:
    """The largest box in the middle of an image that has the wanted proportions."""
    scale = min(size[0] / wanted[0], size[1] / wanted[1])
    left, top = (max(0.0, (size[side] - scale * wanted[side]) / 2) for side in (0, 1))  # rounding must not leave it
    return left, top, size[0] - left, size[1] - top


def _pixels(image: Any) -> Array:
    pixels = np.asarray(image, np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
