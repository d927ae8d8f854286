"""From files to data sets: what the sets of images have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedbraid.data.cache import ArrayWriter, Decoded, decoded
from fedbraid.data.dataset import Dataset
from fedbraid.data.datasets.cached import split
from fedbraid.data.datasets.normal import Normal
from fedbraid.data.formats.class_folders import ImageListing
from fedbraid.data.formats.image_files import Frame, decode_images

PARTS = ("train", "test")


Facts = Callable[[ArrayWriter], dict[str, Any]]


def decoded_images(
    name: str, frame: Frame, train: ImageListing, test: ImageListing, facts: Facts = lambda writer: {}
) -> Decoded:
    """Decode listed image files to arrays under the names that `dataset` expects; `facts` may add to them."""

    def decode(writer: ArrayWriter) -> dict[str, Any]:
        for part, listing in zip(PARTS, (train, test), strict=True):
            x = writer.array(f"{part}_x", (len(listing.files), *frame.shape), np.uint8)
            decode_images(listing.files, frame, x)
            writer.put(f"{part}_y", listing.y)
        return facts(writer)

    # The same files may be split and labelled in another way: by another list of classes, by another seed.
    labels = [hashlib.sha256(listing.y.tobytes()).hexdigest() for listing in (train, test)]
    return decoded(name, train.files + test.files, {"frame": asdict(frame), "labels": labels}, decode)


def dataset(name: str, folder: Path, kept: Decoded, labels: Sequence[str], normal: Normal) -> Dataset:
    """The data set of the arrays `train_x`, `train_y`, `test_x`, `test_y`, and `train_users` and so on if there."""
    return Dataset(
        name=name,
        train=split(kept, "train"),
        test=split(kept, "test"),
        classes=len(labels),
        mean=normal.mean,
        std=normal.std,
        labels=tuple(labels),
        source=str(folder),
    )
