"""Paths of data sets: one data directory, and the layouts that a set may have there."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedbraid.errors import UserError


def cache_directory() -> Path:
    """Return FedBraid's folder in the user's cache (or `FEDBRAID_CACHE`)."""
    given = os.environ.get("FEDBRAID_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedbraid"


def data_directory(given: str | Path | None = None) -> Path:
    """Return the data directory: the argument, else `FEDBRAID_DATA`, else a folder in the user's cache."""
    chosen = given or os.environ.get("FEDBRAID_DATA")
    return Path(chosen).expanduser() if chosen else cache_directory() / "data"


FETCHED = "/hub"
"""How the folder ends that `fedbraid data get` fetches into."""


@dataclass(frozen=True)
class FileLayout:
    """One layout of a data set on disk: all of `files`, together in one of `folders`."""

    folders: tuple[str, ...]  # below the data directory, tried in order
    files: tuple[str, ...]  # glob patterns; "a.csv|a.csv.gz" is satisfied by either


@dataclass(frozen=True)
class Found:
    """A layout with all of its files."""

    layout: FileLayout
    folder: Path
    files: tuple[Path, ...]  # one for each of the layout's, in their order (the first match of a pattern)


def find(name: str, data_dir: str | Path | None, layouts: Sequence[FileLayout]) -> Found:
    """Find the first layout of data set `name` that is complete; without one raise a `UserError` that lists them."""
    root = data_directory(data_dir)
    for layout in layouts:
        for folder in layout.folders:
            path = root / folder
            matches = [_first(path, pattern) for pattern in layout.files]
            files = tuple(file for file in matches if file is not None)
            if len(files) == len(layout.files):
                return Found(layout, path, files)
    published = [layout for layout in layouts if not layout.folders[0].endswith(FETCHED)]
    wanted = "; or ".join(f"{layout.folders[0]}/ with {_first_choices(layout)}" for layout in published)
    there = str(root) if root.is_dir() else f"{root}, which is no directory"
    fetch = f"`fedbraid data get {name}` fetches it where there is a network; " if published != [*layouts] else ""
    raise UserError(
        f"data set {name!r} is not in {there}: it needs {wanted}. {fetch}--data-dir or FEDBRAID_DATA names another "
        "directory"
    )


def _first(folder: Path, pattern: str) -> Path | None:
    for choice in pattern.split("|"):
        found = sorted(folder.glob(choice))
        if found:
            return found[0]
    return None


def _first_choices(layout: FileLayout) -> str:
    """Describe a layout's files in few words: other names and packed files, which are accepted too, are left out."""
    return ", ".join(pattern.split("|")[0] for pattern in layout.files)


@dataclass(frozen=True)
class Availability:
    """The availability of a data set."""

    state: Literal["built in", "yours", "here", "missing"]
    folder: Path | None = None  # of a set that is here
    way: str = ""  # how to get one that is missing


def availability(
    name: str, options: Collection[str], layouts: Sequence[FileLayout] | None, data_dir: str | Path | None
) -> Availability:
    """Search for the files of a data set with these options and layouts; without layouts it is built in."""
    if "path" in options:
        return Availability("yours")
    if layouts is None:
        return Availability("built in")
    try:
        return Availability("here", find(name, data_dir, layouts).folder)
    except UserError as error:
        return Availability("missing", way=str(error))
