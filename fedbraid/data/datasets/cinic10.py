"""CINIC-10: CIFAR-10's classes with images of CIFAR-10 and ImageNet."""

from __future__ import annotations

from pathlib import Path

from fedbraid.data.cache import Decoded
from fedbraid.data.common_options import one_of
from fedbraid.data.dataset import Dataset
from fedbraid.data.datasets.cifar_labels import CIFAR10
from fedbraid.data.datasets.decoding import dataset, decoded_images
from fedbraid.data.datasets.hub_images import hub_images
from fedbraid.data.datasets.hub_layouts import hub_layout, is_from_hub, part_files
from fedbraid.data.datasets.normal import chosen, of_unit
from fedbraid.data.formats.class_folders import images_by_class
from fedbraid.data.formats.image_files import Frame
from fedbraid.data.paths import FileLayout, Found, find

LAYOUTS = (FileLayout(("cinic10", "CINIC-10", "cinic-10"), ("train", "valid", "test")), hub_layout("cinic10"))
CHANNELS = of_unit((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835))
FRAME = Frame(channels=3, height=32, width=32)


def cinic10(data_dir: str | Path | None = None, valid: str = "train", normalise: str = "channels") -> Dataset:
    """90,000 images each for training, validation and testing.

    `valid` says what becomes of the second part: "train" adds it to the first, as is usual, "ignore" leaves it out.
    """
    normal = chosen(normalise, CHANNELS)
    found = find("cinic10", data_dir, LAYOUTS)
    joined = one_of("valid", valid, ("train", "ignore")) == "train"
    kept = _from_hub(found, joined) if is_from_hub("cinic10", found) else _from_folders(found, joined)
    return dataset("cinic10", found.folder, kept, CIFAR10, normal)


def _from_folders(found: Found, joined: bool) -> Decoded:
    train, validation, test = (images_by_class(folder, CIFAR10) for folder in found.files)
    return decoded_images("cinic10", FRAME, train + validation if joined else train, test)


def _from_hub(found: Found, joined: bool) -> Decoded:
    train, validation, test = part_files("cinic10", found)
    parts = [*train, *validation] if joined else train, test
    return hub_images("cinic10", parts, FRAME, {"y": ("label", len(CIFAR10))})
