"""Availability of data sets: a search for their files, which are not read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedbraid.config.registry import Entry
from fedbraid.data.dataset import Dataset
from fedbraid.data.datasets import (
    ag_news,
    cifar,
    cinic10,
    facebook,
    femnist,
    ham10000,
    imagenet100,
    mnist,
    sent140,
    shakespeare,
    tiny_imagenet,
)
from fedbraid.data.paths import FileLayout, find
from fedbraid.errors import UserError

LAYOUTS: dict[str, tuple[FileLayout, ...]] = {
    "mnist": mnist.MNIST_LAYOUTS,
    "fashion-mnist": mnist.FASHION_LAYOUTS,
    "femnist": femnist.LAYOUTS,
    "cifar10": cifar.LAYOUTS10,
    "cifar100": cifar.LAYOUTS100,
    "cinic10": cinic10.LAYOUTS,
    "tiny-imagenet": tiny_imagenet.LAYOUTS,
    "imagenet100": imagenet100.LAYOUTS,
    "ham10000": ham10000.LAYOUTS,
    "ag-news": ag_news.LAYOUTS,
    "sent140": sent140.LAYOUTS,
    "shakespeare": shakespeare.LAYOUTS,
    "facebook": facebook.LAYOUTS,
}
"""How the sets that come as files may lie in the data directory."""


@dataclass(frozen=True)
class Availability:
    """The availability of a data set."""

    state: Literal["built in", "yours", "here", "missing"]
    folder: Path | None = None  # of a set that is here
    way: str = ""  # how to get one that is missing


def locate_dataset(entry: Entry[Dataset], data_dir: str | Path | None) -> Availability:
    if "path" in entry.options:
        return Availability("yours")
    if entry.name not in LAYOUTS:
        return Availability("built in")
    try:
        return Availability("here", find(entry.name, data_dir, LAYOUTS[entry.name]).folder)
    except UserError as error:
        return Availability("missing", way=str(error))
