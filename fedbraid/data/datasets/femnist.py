"""FEMNIST: handwritten digits and letters by writer, as LEAF made it of EMNIST."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbraid.core.random import stream
from fedbraid.data.cache import ArrayWriter, decoded
from fedbraid.data.dataset import Array, Dataset
from fedbraid.data.datasets import hub_images
from fedbraid.data.datasets.cached import rows_of, write_labels
from fedbraid.data.datasets.decoding import PARTS, dataset
from fedbraid.data.datasets.hub_layouts import hub_layout, part_files
from fedbraid.data.datasets.normal import chosen, of_unit
from fedbraid.data.formats.image_files import Frame
from fedbraid.data.formats.leaf import json_files, samples
from fedbraid.data.formats.npz import read_npz
from fedbraid.data.formats.progress_lines import Progress
from fedbraid.data.held_out import held_out
from fedbraid.data.paths import FileLayout, find
from fedbraid.errors import UserError

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
SIDE = 28
JSON = FileLayout(
    ("femnist", "femnist/data", "leaf/data/femnist/data"),
    ("train/*.json|train/*.json.gz", "test/*.json|test/*.json.gz"),
)
ARCHIVE = FileLayout(("femnist",), ("femnist*.npz",))
HUB = hub_layout("femnist")
LAYOUTS = (JSON, ARCHIVE, HUB)
HUB_TEST_SHARE = 0.1  # of each writer's images, as in LEAF: the hub's are not split
CHANNELS = of_unit([0.9637], [0.1597])


def femnist(data_dir: str | Path | None = None, normalise: str = "channels") -> Dataset:
    """Dark characters on white, 28x28, in 62 classes; users are the writers.

    LEAF's networks see pixels between 0 and 1: normalise="unit".
    """
    normal = chosen(normalise, CHANNELS)
    found = find("femnist", data_dir, LAYOUTS)
    if found.layout is JSON:
        parts = {part: json_files(found.folder / part) for part in PARTS}
        sources = [file for files in parts.values() for file in files]
        kept = decoded("femnist", sources, {}, lambda arrays: _from_json(arrays, parts))
    elif found.layout is HUB:
        (files,) = part_files("femnist", found)
        kept = decoded("femnist", files, {}, lambda arrays: _from_hub(arrays, files))
    else:
        kept = decoded("femnist", found.files, {}, lambda arrays: _from_archive(arrays, found.files[0]))
    return dataset("femnist", found.folder, kept, CHARACTERS, normal)


def _from_json(arrays: ArrayWriter, parts: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
    progress = Progress(sum(map(len, parts.values())), "files of LEAF's")
    for part, files in parts.items():
        images: list[Array] = []
        labels: list[Array] = []
        writers: list[str] = []
        for file in files:
            for writer, x, y in samples(file):
                images.append(_pixels(file, writer, x))
                labels.append(_classes(file, writer, y))
                writers += [writer] * len(y)
            progress.add(1)
        if not writers:
            raise UserError(f"{files[0].parent} has no samples")
        out, at = arrays.array(f"{part}_x", (len(writers), 1, SIDE, SIDE), np.uint8), 0
        for block in images:  # joined in place: the whole set is large
            out[at : at + len(block)] = block
            at += len(block)
        arrays.put(f"{part}_y", np.concatenate(labels))
        arrays.put(f"{part}_users", np.array(writers))
    return {}


def _pixels(file: Path, writer: str, x: list[Any]) -> Array:
    """LEAF's numbers from 0 (black) to 1 (white), as the bytes they were made of."""
    try:
        values = np.array(x, np.float64).reshape(len(x), SIDE * SIDE)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{file}: user {writer!r} has samples that are not {SIDE * SIDE} numbers") from error
    if not ((values >= 0) & (values <= 1)).all():
        raise UserError(f"{file}: user {writer!r} has pixels that are not between 0 and 1")
    return np.rint(255 * values).astype(np.uint8).reshape(-1, 1, SIDE, SIDE)


def _classes(file: Path, writer: str, y: list[Any]) -> Array:
    if not all(isinstance(label, int) and 0 <= label < len(CHARACTERS) for label in y):
        raise UserError(f"{file}: user {writer!r} has labels that are not whole numbers in 0..{len(CHARACTERS) - 1}")
    return np.array(y, np.int64)


def _from_hub(arrays: ArrayWriter, files: Sequence[Path]) -> dict[str, Any]:
    writers = np.array(hub_images.values(files, "writer_id"), dtype=str)
    rows = rows_of(held_out(writers, HUB_TEST_SHARE, stream(0, "femnist split")), files)
    write_labels(arrays, rows, hub_images.labels(files, "character", len(CHARACTERS)), writers)
    hub_images.write_images(arrays, files, "image", rows, Frame(channels=1, height=SIDE, width=SIDE))
    return {}


def _from_archive(arrays: ArrayWriter, file: Path) -> dict[str, Any]:
    names = ("x", "y", "user", "users", "is_test")
    held = read_npz(file, names)
    missing = sorted(set(names) - held.keys())
    if missing:
        raise UserError(f"{file} lacks the array {missing[0]!r}; it must hold x, y, user, users and is_test")
    x, y, user, users, is_test = (held[name] for name in names)
    columns = {"y": (y, "iu"), "user": (user, "iu"), "is_test": (is_test, "b")}
    if x.dtype != np.uint8 or x.shape[1:] != (SIDE * SIDE,):
        raise UserError(f"{file}: x must be bytes [n, {SIDE * SIDE}], not {x.dtype} {list(x.shape)}")
    for name, (column, kinds) in columns.items():
        if column.shape != (len(x),) or column.dtype.kind not in kinds:
            raise UserError(f"{file}: {name} must have one value for each of the {len(x):,} images")
    if users.ndim != 1 or users.dtype.kind not in "iuUS":
        raise UserError(f"{file}: users must be a list of names or numbers, not {users.dtype} {list(users.shape)}")
    for name, column, end in (("y", y, len(CHARACTERS)), ("user", user, len(users))):
        if not ((column >= 0) & (column < end)).all():
            raise UserError(f"{file}: {name} must lie in 0..{end - 1}")
    for part, mask in zip(PARTS, (~is_test, is_test), strict=True):
        if not mask.any():
            raise UserError(f"{file}: is_test leaves no samples for the {part} split")
        arrays.put(f"{part}_x", x[mask].reshape(-1, 1, SIDE, SIDE))
        arrays.put(f"{part}_y", y[mask].astype(np.int64))
        arrays.put(f"{part}_users", users[user[mask]])
    return {}
