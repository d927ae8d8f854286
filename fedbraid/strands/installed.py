"""Strands that other installed packages bring, by the entry point group `fedbraid.strands`.

A package names its strands in its pyproject.toml:

    [project.entry-points."fedbraid.strands"]
    mine = "my_package:Mine"

Then `mine` is a method wherever that package is installed. A package is loaded only when its strand is asked for.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from fedbraid.core.strand import Strand
from fedbraid.errors import UserError

GROUP = "fedbraid.strands"


def names() -> list[str]:
    """Return the names of all strands that installed packages bring, without loading them."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def find(name: str) -> type[Strand] | None:
    """Return the strand called `name` of an installed package, or None.

    Raises:
        UserError: two packages bring one, or the package cannot be loaded, or what it names is no such strand.
    """
    found = {entry.value: entry for entry in entry_points(group=GROUP, name=name)}
    if len(found) > 1:
        raise UserError(f"{' and '.join(map(_source, found.values()))} both bring a method {name!r}; uninstall one")
    return _loaded(*found.values()) if found else None


@cache
def _loaded(entry: EntryPoint) -> type[Strand]:
    try:
        kind = entry.load()
    except Exception as error:  # whatever a package raises while it is imported
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"the method {entry.name!r} of {_source(entry)} cannot be loaded ({reason})") from error
    if not (isinstance(kind, type) and issubclass(kind, Strand)):
        raise UserError(f"the method {entry.name!r} of {_source(entry)} is {kind!r}; it must be a subclass of Strand")
    if kind.name != entry.name:
        raise UserError(
            f"{_source(entry)} brings its strand {kind.name!r} as {entry.name!r}; name the entry point as the strand"
        )
    return kind


def _source(entry: EntryPoint) -> str:
    """The package that an entry point belongs to."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
