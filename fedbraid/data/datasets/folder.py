"""A user's own images: class folders, split into training and test images or not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from fedbraid.config.registry import whole
from fedbraid.core.random import stream
from fedbraid.data.cache import regular
from fedbraid.data.common_options import own_path, share, true_or_false
from fedbraid.data.dataset import Dataset
from fedbraid.data.datasets.decoding import dataset, decoded_images
from fedbraid.data.datasets.normal import Normal, chosen, measured
from fedbraid.data.formats.class_folders import ImageListing, class_folders, images_by_class, listing
from fedbraid.data.formats.image_files import Channels, Frame, native_frame
from fedbraid.data.held_out import held_out
from fedbraid.errors import UserError


def folder(
    path: str = "",
    pixels: int = 0,
    grey: bool = False,
    test_share: float = 0.2,
    seed: int = 0,
    normalise: str = "channels",
) -> Dataset:
    """Images of the classes whose folders lie in `path`, or in its folders `train` and `test` (or `val`).

    Without those, `test_share` of every class is held out. Images may have any size if `pixels` is given: the shorter
    side is scaled to it and the middle is cut out. `grey` makes one channel of three. Links to folders are followed.
    """
    place, side, seed = own_path("folder", "path", path), whole("pixels", pixels, 0), whole("seed", seed, 0)
    channels: Channels = 1 if true_or_false("grey", grey) else 3
    chosen(normalise, Normal((), ()))  # a mistake is told before a long decoding
    classes, train, test = _listed(place, share("test_share", test_share), seed)
    if not side:
        regular(train.files[0])  # a pipe would be waited for
    frame = Frame(channels, side, side, "crop") if side else native_frame(train.files[0], channels)
    kept = decoded_images("folder", frame, train, test, lambda writer: asdict(measured(writer.filled("train_x"))))
    normal = Normal(tuple(kept.facts["mean"]), tuple(kept.facts["std"]))
    return dataset("folder", place, kept, classes, chosen(normalise, normal))


def _listed(place: Path, test_share: float, seed: int) -> tuple[tuple[str, ...], ImageListing, ImageListing]:
    """The classes and their images. A folder `train` that holds images and no folders is a class of that name."""
    with listing(place):
        parts = [place / "train", *(place / name for name in ("test", "val") if (place / name).is_dir())]
        is_split = len(parts) > 1 and parts[0].is_dir() and any(entry.is_dir() for entry in parts[0].iterdir())
    if is_split:
        classes, train = _all_classes(parts[0])
        return classes, train, images_by_class(parts[1], classes)
    classes, images = _all_classes(place)
    is_test = held_out(images.y, test_share, stream(seed, "folder split"))
    if not is_test.any():
        raise UserError(f"test_share={test_share:g} of the images in {place} is less than one of any class")
    return classes, images[np.flatnonzero(~is_test)], images[np.flatnonzero(is_test)]


def _all_classes(place: Path) -> tuple[tuple[str, ...], ImageListing]:
    """Every class has images: an empty folder is a mistake, or images that lie one folder deeper."""
    classes = class_folders(place)
    images = images_by_class(place, classes)
    empty = np.setdiff1d(np.arange(len(classes)), images.y)
    if len(empty):
        raise UserError(f"{place / classes[empty[0]]} holds no images; put some right into it, or leave the folder out")
    return classes, images
