"""Images from the hub's Parquet files: columns of encoded images, labels, and further columns."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbraid.data.cache import ArrayWriter, Decoded, decoded
from fedbraid.data.datasets.cached import Rows, SplitWriter
from fedbraid.data.formats import parquet
from fedbraid.data.formats.image_files import Frame, decode_image
from fedbraid.data.formats.progress_lines import Progress
from fedbraid.errors import UserError

AT_ONCE = 256
"""Images that are decoded together: photographs of this number fit any memory."""

Files = Sequence[Path]


def hub_images(
    name: str, parts: Sequence[Files], frame: Frame, classes: Mapping[str, tuple[str, int]], image: str = "image"
) -> Decoded:
    """The images of a training and a test part.

    `classes` says what labels there are: {"y": ("label", 10)} puts the column `label`, which has classes 0 to 9, into
    the arrays `train_y` and `test_y`.
    """
    train, test = parts
    files = (*train, *test)

    def decode(writer: ArrayWriter) -> dict[str, Any]:
        first = sum(map(parquet.count, train))
        rows = {"train": np.arange(first), "test": np.arange(first, first + sum(map(parquet.count, test)))}
        for key, (label, count) in classes.items():
            y = labels(files, label, count)
            for part, own in rows.items():
                writer.put(f"{part}_{key}", y[own])
        write_images(writer, files, image, rows, frame)
        return {}

    return decoded(name, files, {"frame": asdict(frame)}, decode)


def values(files: Files, name: str) -> list[Any]:
    """A column of all files, one after the other."""
    return [value for file in files for (block,) in parquet.blocks(file, (name,)) for value in block]


def class_names(files: Files, name: str, classes: int) -> tuple[str, ...]:
    """Return the names of a column's classes, or their numbers where the files have no names."""
    names = parquet.class_names(files[0], name)
    return names if len(names) == classes else tuple(map(str, range(classes)))


def labels(files: Files, name: str, classes: int) -> NDArray[np.int64]:
    """A column of classes."""
    found = values(files, name)
    strange = [value for value in found if value not in range(classes)]
    if strange:
        last = classes - 1
        raise UserError(f"{files[0]} or a file with it has the {name} {strange[0]!r}; it must lie in 0..{last}")
    return np.array(found, dtype=np.int64)


def write_images(writer: ArrayWriter, files: Files, name: str, rows: Rows, frame: Frame) -> None:
    """Decodes a column of images to where each split has room for its rows."""
    samples_writer = SplitWriter(writer, rows, frame.shape, np.uint8)
    progress = Progress(sum(map(parquet.count, files)), "images")
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow's decoders run beside each other
        for images in _encoded(files, name):
            samples_writer.add(np.stack(list(pool.map(lambda encoded: decode_image(encoded, frame), images))))
            progress.add(len(images))


class Encoded(io.BytesIO):
    """The bytes of an image, with a name for sentences about it."""

    def __init__(self, content: bytes, where: str) -> None:
        super().__init__(content)
        self._where = where

    def __str__(self) -> str:
        return self._where


def _encoded(files: Files, name: str) -> Iterator[list[Encoded]]:
    for file in files:
        row = 0
        for (block,) in parquet.blocks(file, (name,), AT_ONCE):
            images = []
            for cell in block:
                row += 1
                content = cell.get("bytes") if isinstance(cell, dict) else cell
                if not isinstance(content, bytes):
                    raise UserError(f"{file}, row {row} has no image in the column {name!r}")
                images.append(Encoded(content, f"{file}, row {row}"))
            yield images
