"""From files to data sets: what the sets of images have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedbraid.data.cache import Decoded, Shelf, decoded
from fedbraid.data.dataset import Dataset
from fedbraid.data.datasets.cached import split
from fedbraid.data.datasets.normal import Normal
from fedbraid.data.formats.class_folders import Listing
from fedbraid.data.formats.image_files import Frame, decode_images

PARTS = ("train", "test")


Facts = Callable[[Shelf], dict[str, Any]]


def decoded_images(name: str, frame: Frame, train: Listing, test: Listing, facts: Facts = lambda shelf: {}) -> Decoded:
    """Listed image files as arrays, under the names that `dataset` looks for; `facts` are told of them when made."""

    def decode(shelf: Shelf) -> dict[str, Any]:
        for part, listing in zip(PARTS, (train, test), strict=True):
            x = shelf.array(f"{part}_x", (len(listing.files), *frame.shape), np.uint8)
            decode_images(listing.files, frame, x)
            shelf.put(f"{part}_y", listing.y)
        return facts(shelf)

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
