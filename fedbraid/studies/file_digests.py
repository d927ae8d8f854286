"""Files of one's own that runs are made of: whether they are still what they were when a run was recorded."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from fedbraid.config.schema import Config

FILES = "path", "test", "vectors"
"""Options of data sets, partitions and models that name a file or a folder."""
BLOCK = 2**20


def source_of(config: Config) -> str:
    """A digest of the files that the configuration names; "" where it names none, or they are not here."""
    tables = config.data, config.partition, config.model
    named = [table.options[key] for table in tables for key in FILES if table.options.get(key)]
    named += [config.sampling.file] * bool(config.sampling.file)
    paths = [Path(os.path.expanduser(name)) for name in named if isinstance(name, str | Path)]
    if not paths or not all(path.exists() for path in paths):
        return ""
    return hashlib.sha256("|".join(map(_digest, paths)).encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    """Digest a file by its content, and a folder, which may be large, by the names and sizes of all that is in it."""
    if not path.is_dir():
        found = path.stat()
        return _content(path, found.st_size, found.st_mtime_ns)
    inside = sorted(file for file in path.rglob("*") if file.is_file())
    return repr([(file.relative_to(path).as_posix(), file.stat().st_size) for file in inside])


@cache  # cells and seeds share their data
def _content(path: Path, size: int, changed: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
