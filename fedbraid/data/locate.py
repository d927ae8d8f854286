"""Availability of data sets: a search for their files, which are not read."""

from __future__ import annotations

from pathlib import Path

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
from fedbraid.data.paths import Availability, FileLayout, availability

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


def locate_dataset(entry: Entry[Dataset], data_dir: str | Path | None) -> Availability:
    """Return whether a data set is here, without reading its files."""
    return availability(entry.name, entry.options, LAYOUTS.get(entry.name), data_dir)
