"""Folders of class folders of images: the folder's name is the class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbraid.data.formats.image_files import is_image
from fedbraid.errors import UserError


@dataclass(frozen=True, eq=False)
class ImageListing:
    """Image files, not yet decoded, and the number of each one's class."""

    files: tuple[Path, ...]
    y: NDArray[np.int64]

    def __add__(self, other: ImageListing) -> ImageListing:
        return ImageListing(self.files + other.files, np.concatenate([self.y, other.y]))

    def __getitem__(self, chosen: NDArray[np.int64]) -> ImageListing:
        return ImageListing(tuple(self.files[i] for i in chosen), self.y[chosen])


def class_folders(folder: Path) -> tuple[str, ...]:
    """The classes in alphabetical order: the folders that are not hidden, and links to folders."""
    with listing(folder):
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
    if not names:
        raise UserError(f"{folder} has no class folders; every class needs a folder of its images there")
    for name in names:
        if not _is_text(name):
            raise UserError(f"{folder} has the class folder {os.fsencode(name)!r}, which is not UTF-8; rename it")
    return tuple(names)


@contextmanager
def listing(folder: Path) -> Iterator[None]:
    """Turn an OS error of a directory listing into a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be listed ({error.strerror})") from error


def _is_text(name: str) -> bool:
    """Names of files may be any bytes; those that are no text cannot be written to a report."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def images_by_class(folder: Path, classes: Sequence[str], inside: str = "") -> ImageListing:
    """The images of every class of `classes` that has a folder, in alphabetical order within a class.

    `inside` is a folder within the class folders that holds the images, where there is one.
    """
    foreign = sorted(set(class_folders(folder)) - set(classes))
    if foreign:
        raise UserError(f"{folder / foreign[0]} is a class that the training images lack; leave it out or add images")
    found = [_images(folder / name, inside) for name in classes]
    counts = [len(files) for files in found]
    if not sum(counts):
        raise UserError(f"the class folders in {folder} hold no images")
    return ImageListing(tuple(file for files in found for file in files), np.repeat(np.arange(len(classes)), counts))


def _images(folder: Path, inside: str) -> list[Path]:
    with listing(folder):
        path = folder / inside if (folder / inside).is_dir() else folder
        return [path / name for name in sorted(os.listdir(path)) if is_image(name)] if path.is_dir() else []
