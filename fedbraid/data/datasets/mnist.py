"""MNIST, with its writers where QMNIST's files name them, and Fashion-MNIST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbraid.data.cache import ArrayWriter, decoded
from fedbraid.data.common_options import true_or_false
from fedbraid.data.dataset import Dataset, Split
from fedbraid.data.datasets.decoding import PARTS, dataset
from fedbraid.data.datasets.hub_images import hub_images
from fedbraid.data.datasets.hub_layouts import hub_layout, is_from_hub, part_files
from fedbraid.data.datasets.normal import Normal, chosen, of_unit
from fedbraid.data.formats.idx import read_idx
from fedbraid.data.formats.image_files import Frame
from fedbraid.data.paths import FileLayout, Found, find
from fedbraid.errors import UserError

# The published MD5s of the unpacked files: packed anew, they stay the same.
DIGITS = {
    "train-images": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels": "a25bea736e30d166cdddb491f175f624",
    "t10k-images": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels": "27ae3e4e09519cfbb04c329615203637",
}
FASHION = {
    "train-images": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels": "15d484375f8d13e6eb1aabb0c3f46965",
}
GARMENTS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def _choices(name: str, ending: str) -> str:
    """A file, unpacked or not, with the dash of the original or the point that some copies have instead."""
    return "|".join(f"{name}{mark}{ending}{packed}" for packed in ("", ".gz") for mark in "-.")


FILES = tuple(
    _choices(name, "idx3-ubyte" if name.endswith("images") else "idx1-ubyte")
    for name in ("train-images", "train-labels", "t10k-images", "t10k-labels")
)
MNIST = FileLayout(("mnist", "MNIST/raw", "MNIST", "mnist/raw"), FILES)
FASHION_MNIST = FileLayout(("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "fashion_mnist"), FILES)
MNIST_LAYOUTS = (MNIST, hub_layout("mnist"))
FASHION_LAYOUTS = (FASHION_MNIST, hub_layout("fashion-mnist"))
FRAME = Frame(channels=1, height=28, width=28)
WRITERS = FileLayout(
    ("qmnist-writers", "QMNIST/raw", "mnist", "qmnist"),
    tuple(_choices(f"qmnist-{part}-labels", "idx2-int") for part in ("train", "test")),
)
DIGIT, WRITER = 0, 2
"""Columns of QMNIST's table. Its first 10,000 test rows are MNIST's."""


def mnist(data_dir: str | Path | None = None, users: bool = False, normalise: str = "channels") -> Dataset:
    """60,000 and 10,000 handwritten digits; with `users` every image is its writer's.

    Nobody wrote for both parts, so a writer's client has no test samples of its own.
    """
    normal = chosen(normalise, of_unit([0.1307], [0.3081]))
    made = _idx_set("mnist", find("mnist", data_dir, MNIST_LAYOUTS), DIGITS, "0123456789", normal)
    if not true_or_false("users", users):
        return made
    train, test = find("qmnist-writers", data_dir, (WRITERS,)).files
    return replace(made, train=_with_writers(made.train, train), test=_with_writers(made.test, test))


def fashion_mnist(data_dir: str | Path | None = None, normalise: str = "channels") -> Dataset:
    """60,000 and 10,000 grey pictures of clothes."""
    normal = chosen(normalise, of_unit([0.2860], [0.3530]))
    found = find("fashion-mnist", data_dir, FASHION_LAYOUTS)
    return _idx_set("fashion-mnist", found, FASHION, GARMENTS, normal)


def _idx_set(name: str, found: Found, checksums: Mapping[str, str], labels: Sequence[str], normal: Normal) -> Dataset:
    def decode(writer: ArrayWriter) -> dict[str, Any]:
        files = zip(found.files, checksums.values(), strict=True)
        for part in PARTS:
            writer.put(f"{part}_x", read_idx(*next(files))[:, None])
            writer.put(f"{part}_y", read_idx(*next(files)).astype(np.int64))
        return {}

    if is_from_hub(name, found):
        kept = hub_images(name, part_files(name, found), FRAME, {"y": ("label", len(labels))})
    else:
        kept = decoded(name, found.files, {}, decode)
    return dataset(name, found.folder, kept, labels, normal)


def _with_writers(split: Split, file: Path) -> Split:
    table = read_idx(file)
    if table.ndim != 2 or table.shape[1] <= WRITER or not np.array_equal(table[: len(split), DIGIT], split.y):
        raise UserError(f"{file} does not list the writers of MNIST's images: its digits are not MNIST's labels")
    return replace(split, users=table[: len(split), WRITER].astype(np.int64))
