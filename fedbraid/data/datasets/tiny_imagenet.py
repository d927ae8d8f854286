"""Tiny ImageNet: 200 of ImageNet's classes, 500 training and 50 validation images of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedbraid.data.dataset import Dataset
from fedbraid.data.datasets.decoding import dataset, decoded_images
from fedbraid.data.datasets.hub_images import class_names, hub_images
from fedbraid.data.datasets.hub_layouts import hub_layout, is_from_hub, part_files
from fedbraid.data.datasets.normal import chosen, of_unit
from fedbraid.data.formats.class_folders import ImageListing, images_by_class
from fedbraid.data.formats.image_files import Frame, native_frame
from fedbraid.data.formats.streams import lines
from fedbraid.data.paths import FileLayout, find
from fedbraid.errors import UserError

LAYOUTS = (
    FileLayout(("tiny-imagenet-200", "tiny-imagenet", "tiny-imagenet-32"), ("wnids.txt", "train", "val")),
    hub_layout("tiny-imagenet"),
)
CLASSES = 200
ORIGINAL = Frame(channels=3, height=64, width=64)
CHANNELS = of_unit((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821))


def tiny_imagenet(data_dir: str | Path | None = None, normalise: str = "channels") -> Dataset:
    """100,000 and 10,000 colour images, tested on the validation images: the test images' labels are not published.

    The originals have 64x64 pixels, and copies of 32x32 are common: they keep the size they have.
    """
    normal = chosen(normalise, CHANNELS)
    found = find("tiny-imagenet", data_dir, LAYOUTS)
    if is_from_hub("tiny-imagenet", found):
        parts = part_files("tiny-imagenet", found)
        kept = hub_images("tiny-imagenet", parts, ORIGINAL, {"y": ("label", CLASSES)})
        return dataset("tiny-imagenet", found.folder, kept, class_names(parts[0], "label", CLASSES), normal)
    ids = tuple(line.strip() for line in lines(found.files[0]) if line.strip())
    train = images_by_class(found.files[1], ids, inside="images")
    test = _validation(found.files[2], ids)
    kept = decoded_images("tiny-imagenet", native_frame(train.files[0], channels=3), train, test)
    return dataset("tiny-imagenet", found.folder, kept, _names(found.folder / "words.txt", ids), normal)


def _validation(folder: Path, ids: tuple[str, ...]) -> ImageListing:
    """All in one folder with a table of classes, as published, or sorted into class folders, as is often done."""
    table = folder / "val_annotations.txt"
    if not (folder / "images").is_dir() or not table.exists():
        return images_by_class(folder, ids, inside="images")
    numbers = {name: number for number, name in enumerate(ids)}
    files, y = [], []
    for at, line in enumerate(lines(table), 1):
        name, _, rest = line.partition("\t")
        wnid = rest.split("\t")[0].strip()
        if wnid not in numbers:
            raise UserError(f"{table}, line {at} names the class {wnid!r}, which is not in wnids.txt")
        files.append(folder / "images" / name)
        y.append(numbers[wnid])
    if not files:
        raise UserError(f"{table} is empty; it must name an image and its class in every line")
    return ImageListing(tuple(files), np.array(y, np.int64))


def _names(words: Path, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the classes' names: the first synonym where the file of words exists, else the WordNet ids."""
    if not words.exists():
        return ids
    told = dict(line.rstrip("\n").split("\t", 1) for line in lines(words) if "\t" in line)
    return tuple(told.get(name, name).split(",")[0] for name in ids)
