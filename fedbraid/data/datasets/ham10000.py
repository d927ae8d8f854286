"""HAM10000: dermatoscopic images of pigmented lesions, several of some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbraid.config.registry import whole
from fedbraid.core.random import stream
from fedbraid.data.cache import ArrayWriter, Decoded, decoded
from fedbraid.data.dataset import Array, Dataset
from fedbraid.data.datasets.decoding import PARTS, dataset, decoded_images
from fedbraid.data.datasets.ham10000_hub import metadata
from fedbraid.data.datasets.hub_images import write_images
from fedbraid.data.datasets.hub_layouts import hub_layout, part_files
from fedbraid.data.datasets.normal import chosen, of_unit
from fedbraid.data.formats.class_folders import ImageListing
from fedbraid.data.formats.csv_tables import rows
from fedbraid.data.formats.image_files import Frame
from fedbraid.data.formats.npz import read_npz
from fedbraid.data.paths import FileLayout, Found, find
from fedbraid.data.shaping import scaled
from fedbraid.errors import UserError

CLASSES = ("akiec", "bcc", "bkl", "df", "nv", "vasc", "mel")
FOLDERS = ("ham10000", "HAM10000")
METADATA = "HAM10000_metadata.csv|HAM10000_metadata.csv.gz|HAM10000_metadata"
IMAGES = FileLayout(FOLDERS, (METADATA, "ISIC_*.jpg|*/ISIC_*.jpg"))
SMALL = FileLayout(FOLDERS, (METADATA, "*28x28*.npz"))
HUB = hub_layout("ham10000")
LAYOUTS = (IMAGES, SMALL, HUB)
CHANNELS = of_unit((0.7630, 0.5456, 0.5700), (0.1409, 0.1526, 0.1700))


@dataclass(frozen=True, eq=False)
class Cases:
    """The metadata of every image: its name, the lesion it shows, the lesion's class."""

    images: tuple[str, ...]
    lesions: Array
    y: NDArray[np.int64]


def ham10000(
    data_dir: str | Path | None = None,
    pixels: int = 28,
    held_out: int = 30,
    seed: int = 0,
    normalise: str = "channels",
) -> Dataset:
    """10,015 colour images of 7 classes; `held_out` images of every class are the test set.

    Lesions are kept together: none is both trained and tested on. The images, which are wider than high, are scaled
    whole to `pixels` x `pixels`, so that nothing of a lesion is cut off.
    """
    normal = chosen(normalise, CHANNELS)
    side = whole("pixels", pixels)
    found = find("ham10000", data_dir, LAYOUTS)
    options = {"pixels": side, "held_out": whole("held_out", held_out), "seed": whole("seed", seed, 0)}
    if found.layout is HUB:
        return dataset("ham10000", found.folder, _from_hub(found, **options), CLASSES, normal)
    cases = _cases(found.files[0])
    is_test = held_out_images(cases, held_out, seed)
    if found.layout is SMALL:
        kept = decoded("ham10000", found.files, options, lambda writer: _small(writer, found, cases, is_test, side))
    else:
        images = ImageListing(_files(found.folder, cases.images), cases.y)
        train, test = (images[np.flatnonzero(mask)] for mask in (~is_test, is_test))
        kept = decoded_images("ham10000", Frame(3, side, side, "squash"), train, test)
    return dataset("ham10000", found.folder, kept, CLASSES, normal)


def held_out_images(cases: Cases, held_out: int, seed: int) -> NDArray[np.bool_]:
    """Marks `held_out` images of every class: all images of lesions drawn at random, as long as they fit."""
    is_test = np.zeros(len(cases.y), bool)
    for number, name in enumerate(CLASSES):
        lesions, sizes = np.unique(cases.lesions[cases.y == number], return_counts=True)
        wanted = held_out
        for at in stream(seed, "ham10000 split", client=number).permutation(len(lesions)):
            if sizes[at] <= wanted:
                is_test |= cases.lesions == lesions[at]
                wanted -= int(sizes[at])
        if wanted or (is_test | (cases.y != number)).all():
            raise UserError(
                f"held_out={held_out} cannot be taken from class {name!r} with {sizes.sum()} images of {len(lesions)} "
                "lesions and leave some to train on; hold out fewer"
            )
    return is_test


def _cases(file: Path) -> Cases:
    table = [cells for _, cells in rows(file)]
    wanted = ("image_id", "lesion_id", "dx")
    if len(table) < 2 or not set(wanted) <= set(table[0]):
        raise UserError(f"{file} must name the columns {', '.join(wanted)} in its first line, and images in the others")
    columns = [table[0].index(name) for name in wanted]
    if any(len(cells) <= max(columns) for cells in table):
        raise UserError(f"{file} has rows with fewer cells than its first line")
    images, lesions, names = zip(*([cells[c] for c in columns] for cells in table[1:]), strict=True)
    return _checked(file, images, lesions, names)


def _checked(file: Path, images: tuple[str, ...], lesions: tuple[str, ...], names: tuple[str, ...]) -> Cases:
    foreign = sorted(set(names) - set(CLASSES))
    if foreign:
        raise UserError(f"{file} has the class {foreign[0]!r}; known are {', '.join(CLASSES)}")
    diagnoses = dict(zip(lesions, names, strict=True))
    for lesion, name in zip(lesions, names, strict=True):
        if diagnoses[lesion] != name:
            raise UserError(f"{file} gives lesion {lesion!r} two classes, {name!r} and {diagnoses[lesion]!r}")
    return Cases(images, np.array(lesions), np.array([CLASSES.index(name) for name in names], np.int64))


def _files(folder: Path, images: Sequence[str]) -> tuple[Path, ...]:
    """Every image's file, wherever it lies below the folder."""
    lying = {file.stem: file for file in sorted(folder.rglob("*.jpg"))}
    missing = [name for name in images if name not in lying]
    if missing:
        raise UserError(f"{folder} lacks {len(missing):,} of {len(images):,} images, among them {missing[0]}.jpg")
    return tuple(lying[name] for name in images)


def _from_hub(found: Found, pixels: int, held_out: int, seed: int) -> Decoded:
    files = [file for part in part_files("ham10000", found) for file in part]
    found_metadata = metadata(files)
    cases = _checked(files[0], found_metadata.images, found_metadata.lesions, found_metadata.classes)
    is_test = held_out_images(cases, held_out, seed)
    masks = dict(zip(PARTS, (~is_test, is_test), strict=True))

    def decode(writer: ArrayWriter) -> dict[str, Any]:
        for part, mask in masks.items():
            writer.put(f"{part}_y", cases.y[mask])
        rows = {part: found_metadata.rows[mask] for part, mask in masks.items()}
        write_images(writer, files, "image", rows, Frame(3, pixels, pixels, "squash"))
        return {}

    return decoded("ham10000", files, {"pixels": pixels, "held_out": held_out, "seed": seed}, decode)


def _small(writer: ArrayWriter, found: Found, cases: Cases, is_test: NDArray[np.bool_], side: int) -> dict[str, Any]:
    """The images of 28x28 pixels in an archive, in the order of the metadata."""
    file = found.files[1]
    held = read_npz(file, ("x", "y"))
    if not {"x", "y"} <= held.keys() or held["x"].dtype != np.uint8 or held["x"].shape[1:] != (28, 28, 3):
        raise UserError(f"{file} must hold x, 8-bit images [n, 28, 28, 3], and y, their classes")
    if not np.array_equal(held["y"], cases.y) or len(held["x"]) != len(cases.y):
        raise UserError(f"{file} does not list the images of {found.files[0]}: its classes are others")
    for part, mask in zip(PARTS, (~is_test, is_test), strict=True):
        x = held["x"][mask].transpose(0, 3, 1, 2)
        writer.put(f"{part}_x", x if side == x.shape[-1] else scaled(x, side))
        writer.put(f"{part}_y", cases.y[mask])
    return {}
