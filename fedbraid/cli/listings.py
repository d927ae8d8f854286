"""Lists of what there is to choose from, without importing torch: they are made once and kept in the user's cache.

A list is made anew when any file of the package, or the set of installed packages, has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fedbraid.config.registry import Entry
from fedbraid.data.paths import Availability, FileLayout, availability, cache_directory

PACKAGE = Path(__file__).parents[1]


def cached_list(name: str, make: Callable[[], Any]) -> Any:
    """Return the value of `make()`, which JSON can hold, from the cache where that is up to date.

    A cache that cannot be read or written costs time and nothing else.
    """
    file, key = cache_directory() / "lists" / f"{name}.json", _package_state()
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["key"] == key:
            return kept["value"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    value = json.loads(json.dumps(make(), default=str))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps({"key": key, "value": value}), encoding="utf-8")
        os.replace(beside, file)  # so that another process never reads half a file
    except OSError:
        pass
    return value


def _package_state() -> str:
    """Hash the times and sizes of the package's files, and the strands that other packages install."""
    digest = hashlib.sha256(repr((sys.version, entry_points(group="fedbraid.strands"))).encode())
    for file in sorted(PACKAGE.rglob("*.py")):
        status = file.stat()
        digest.update(f"{file} {status.st_mtime_ns} {status.st_size}".encode())
    return digest.hexdigest()


def methods() -> list[dict[str, Any]]:
    """List every method and strand."""

    def make() -> list[dict[str, Any]]:
        from fedbraid.contract import catalogue

        return catalogue.everything()

    listed: list[dict[str, Any]] = cached_list("methods", make)
    return listed


def method_groups() -> dict[str, list[str]]:
    """List the names of methods and strands by what they change of FedAvg."""

    def make() -> dict[str, list[str]]:
        from fedbraid.contract import catalogue

        return catalogue.groups()

    listed: dict[str, list[str]] = cached_list("method-groups", make)
    return listed


def models() -> list[dict[str, Any]]:
    """List the built-in networks, with their options as values and as text."""

    def make() -> list[dict[str, Any]]:
        from fedbraid import models

        return describe(models.describe())

    listed: list[dict[str, Any]] = cached_list("models", make)
    return listed


def data_sets(data_dir: Path | None) -> tuple[list[dict[str, Any]], list[Availability], list[dict[str, Any]]]:
    """List the data sets, where each of them is, and the partitions."""

    def make() -> dict[str, Any]:
        from fedbraid import data
        from fedbraid.data.locate import LAYOUTS

        layouts = {name: [vars(layout) for layout in those] for name, those in LAYOUTS.items()}
        return {"data": describe(data.describe()), "partitions": describe(data.PARTITIONS), "layouts": layouts}

    listed = cached_list("data", make)
    layouts = {
        name: [FileLayout(tuple(one["folders"]), tuple(one["files"])) for one in those]
        for name, those in listed["layouts"].items()
    }
    places = [availability(one["name"], one["options"], layouts.get(one["name"]), data_dir) for one in listed["data"]]
    return listed["data"], places, listed["partitions"]


def describe(entries: Iterable[Entry[Any]]) -> list[dict[str, Any]]:
    """Return registered things in plain values, with their options as text beside them."""
    return [{"name": e.name, "summary": e.summary, "options": e.options, "text": written_options(e)} for e in entries]


def written_options(entry: Entry[Any]) -> str:
    """Write options with their defaults; … where nothing is the default."""
    return ", ".join(f"{key}={'…' if value in (None, '', ()) else value}" for key, value in entry.options.items())


def without_text(listed: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of a list as `--json` prints them."""
    return [{key: value for key, value in one.items() if key != "text"} for one in listed]
