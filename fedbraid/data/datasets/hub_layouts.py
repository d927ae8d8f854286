"""The sets that the Hugging Face hub has, and how they lie on disk once fetched from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbraid.data.paths import FETCHED, FileLayout, Found
from fedbraid.errors import UserError

SHARD = re.compile(r"-(\d+)-of-(\d+)")


@dataclass(frozen=True)
class HubSource:
    """A repository of the hub, and the parts of it that make the set."""

    repo: str
    parts: tuple[str, ...] = ("train", "test")


SOURCES = {
    "mnist": HubSource("ylecun/mnist"),
    "fashion-mnist": HubSource("zalando-datasets/fashion_mnist"),
    "femnist": HubSource("flwrlabs/femnist", ("train",)),
    "cifar10": HubSource("uoft-cs/cifar10"),
    "cifar100": HubSource("uoft-cs/cifar100"),
    "cinic10": HubSource("flwrlabs/cinic10", ("train", "validation", "test")),
    "tiny-imagenet": HubSource("zh-plus/tiny-imagenet", ("train", "valid")),
    "imagenet100": HubSource("clane9/imagenet-100", ("train", "validation")),
    "ham10000": HubSource("marmal88/skin_cancer", ("train", "validation", "test")),
    "ag-news": HubSource("fancyzhx/ag_news"),
    "sent140": HubSource("stanfordnlp/sentiment140", ("train",)),
    "shakespeare": HubSource("flwrlabs/shakespeare", ("train",)),
}


def folder_of(name: str) -> str:
    """Return the folder of a set from the hub, relative to the data directory."""
    return f"{name}{FETCHED}"


def hub_layout(name: str) -> FileLayout:
    """The layout of a set from the hub: its first file of each part stands for all of them."""
    below = ("|".join(f"**/{pattern}" for pattern in _patterns(part)) for part in SOURCES[name].parts)
    return FileLayout((folder_of(name),), tuple(below))


def is_from_hub(name: str, found: Found) -> bool:
    return found.layout == hub_layout(name)


def belongs(path: str, part: str) -> bool:
    """Tell if a file of a repository belongs to a part: `…/train-00000-of-00002.parquet`, or `…/train/0000.parquet`."""
    return any(Path(path).match(pattern) for pattern in _patterns(part))


def part_files(name: str, found: Found) -> list[Sequence[Path]]:
    """The files of each part, in order, none of them missing."""
    parts: list[Sequence[Path]] = []
    for part in SOURCES[name].parts:
        files = sorted({file for pattern in _patterns(part) for file in found.folder.rglob(pattern)})
        for file in files:
            shard = SHARD.search(file.name)
            if shard and int(shard[2]) != len(files):
                raise UserError(f"{file.parent} has {len(files)} of {int(shard[2])} {part} files; fetch {name} anew")
        parts.append(files)
    return parts


def _patterns(part: str) -> tuple[str, str]:
    """As repositories name a part's files, and as the hub names those that it converts itself."""
    return f"{part}-*.parquet", f"{part}/*.parquet"
