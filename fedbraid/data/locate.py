"""Which data sets are here: a look for their files, without reading them."""

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
from fedbraid.data.paths import Layout, find
from fedbraid.errors import UserError

LAYOUTS: dict[str, tuple[Layout, ...]] = {
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
class Place:
    """Where a data set is."""

    state: Literal["built in", "yours", "here", "missing"]
    folder: Path | None = None  # of a set that is here
    way: str = ""  # how to get one that is missing


def place_of(entry: Entry[Dataset], data_dir: str | Path | None) -> Place:
    if "path" in entry.options:
        return Place("yours")
    if entry.name not in LAYOUTS:
        return Place("built in")
    try:
        return Place("here", find(entry.name, data_dir, LAYOUTS[entry.name]).folder)
    except UserError as error:
        return Place("missing", way=str(error))
