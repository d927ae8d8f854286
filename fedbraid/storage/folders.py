"""Names of folders: of runs, comparisons and reports."""

from __future__ import annotations

import hashlib
from itertools import count
from os import PathLike, fspath
from pathlib import Path

from fedbraid.errors import UserError


def run_path(out: Path, label: str, seed: int) -> Path:
    """Return the folder in which a comparison records one of its runs."""
    return out / directory_name(label) / f"seed-{seed}"


def output_path(place: str | PathLike[str], option: str = "out") -> Path:
    """Return the path to write to. An empty one is refused, which would mean the current directory.

    `option` is what the message calls it.
    """
    if not fspath(place).strip():
        raise UserError(f"{option} is empty, as by a variable that is not set; name a path, or leave {option} out")
    return Path(place)


def directory_name(label: str) -> str:
    """Return a method's label as a file name. A long label is cut and ends in a part of its hash."""
    name = "".join(c if c.isalnum() or c in "+-._=" else "_" for c in label.replace(" ", ""))
    return name if len(name) <= 80 else f"{name[:70]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def next_numbered(parent: Path, name: str) -> Path:
    """Return the first of name-1, name-2, … that does not exist."""
    return next(path for k in count(1) if not (path := parent / f"{name}-{k}").exists())
