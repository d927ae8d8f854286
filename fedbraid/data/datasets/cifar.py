"""CIFAR-10 and CIFAR-100, from the binary layout or the pickled one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedbraid.data.cache import ArrayWriter, Decoded, decoded
from fedbraid.data.common_options import true_or_false
from fedbraid.data.dataset import Dataset
from fedbraid.data.datasets.cifar_labels import CIFAR10, CIFAR100_COARSE, CIFAR100_FINE
from fedbraid.data.datasets.decoding import PARTS, dataset
from fedbraid.data.datasets.hub_images import hub_images
from fedbraid.data.datasets.hub_layouts import hub_layout, is_from_hub, part_files
from fedbraid.data.datasets.normal import Normal, chosen
from fedbraid.data.formats.cifar_batches import PIXELS, CifarBatch, CifarKind, read_binary, read_python
from fedbraid.data.formats.image_files import Frame
from fedbraid.data.paths import FileLayout, Found, find

# The published MD5s of the pickled files.
PYTHON10 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
PYTHON100 = {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}

# The binary layout comes first: reading it runs no code.
LAYOUTS10 = (
    FileLayout(
        ("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10"), tuple(f"{f}.bin" for f in PYTHON10)
    ),
    FileLayout(("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10"), tuple(PYTHON10)),
    hub_layout("cifar10"),
)
LAYOUTS100 = (
    FileLayout(("cifar-100-binary", "cifar100/cifar-100-binary", "cifar100"), ("train.bin", "test.bin")),
    FileLayout(("cifar-100-python", "cifar100/cifar-100-python", "cifar100"), tuple(PYTHON100)),
    hub_layout("cifar100"),
)
FRAME = Frame(channels=3, height=32, width=32)
KIND10 = CifarKind((("labels", 10),))
KIND100 = CifarKind((("coarse_labels", 20), ("fine_labels", 100)))

CHANNELS10 = Normal((125.3, 123.0, 113.9), (63.0, 62.1, 66.7))
CHANNELS100 = Normal((129.3, 124.1, 112.4), (68.2, 65.4, 70.4))


def cifar10(data_dir: str | Path | None = None, normalise: str = "channels") -> Dataset:
    """50,000 and 10,000 colour images of 32x32 pixels, 10 classes."""
    normal = chosen(normalise, CHANNELS10)
    found = find("cifar10", data_dir, LAYOUTS10)
    kept = _decoded("cifar10", found, KIND10, rows=[10_000] * 6, checksums=PYTHON10)
    return dataset("cifar10", found.folder, _labelled(kept, "labels"), CIFAR10, normal)


def cifar100(data_dir: str | Path | None = None, coarse: bool = False, normalise: str = "channels") -> Dataset:
    """50,000 and 10,000 colour images of 32x32 pixels: 100 classes, or the 20 groups they form."""
    normal = chosen(normalise, CHANNELS100)
    found = find("cifar100", data_dir, LAYOUTS100)
    kept = _decoded("cifar100", found, KIND100, rows=[50_000, 10_000], checksums=PYTHON100)
    key, labels = (
        ("coarse_labels", CIFAR100_COARSE) if true_or_false("coarse", coarse) else ("fine_labels", CIFAR100_FINE)
    )
    return dataset("cifar100", found.folder, _labelled(kept, key), labels, normal)


def _decoded(name: str, found: Found, kind: CifarKind, rows: list[int], checksums: Mapping[str, str]) -> Decoded:
    """The images and all their labels. The last file is the test set."""

    def decode(writer: ArrayWriter) -> dict[str, Any]:
        for part, these in zip(PARTS, (slice(-1), slice(-1, None)), strict=True):
            counts = rows[these]
            x = writer.array(f"{part}_x", (sum(counts), *PIXELS), np.uint8)
            labels = {key: writer.array(f"{part}_{key}", (sum(counts),), np.int64) for key, _ in kind.labels}
            at = 0
            for file, count in zip(found.files[these], counts, strict=True):
                batch = _read(file, kind, count, checksums)
                x[at : at + count] = batch.x
                for key, column in batch.labels.items():
                    labels[key][at : at + count] = column
                at += count
        return {}

    if is_from_hub(name, found):
        columns = {key: (key.removesuffix("s"), classes) for key, classes in kind.labels}
        return hub_images(name, part_files(name, found), FRAME, columns, image="img")
    return decoded(name, found.files, {}, decode)


def _read(file: Path, kind: CifarKind, rows: int, checksums: Mapping[str, str]) -> CifarBatch:
    if file.suffix == ".bin":
        return read_binary(file, kind, rows)
    return read_python(file, kind, rows, checksums[file.name])


def _labelled(kept: Decoded, key: str) -> Decoded:
    """With one kind of label as the label."""
    return Decoded(kept.arrays | {f"{part}_y": kept.arrays[f"{part}_{key}"] for part in PARTS}, kept.facts)
