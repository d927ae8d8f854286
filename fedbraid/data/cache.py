"""Decoded data, kept as memory-mapped arrays: the second start reads no image and needs no memory of its own.

An entry is a folder of `.npy` files and a `facts.json`, made beside its place and renamed when it is whole. Its name
holds a digest of the sources' names, sizes and times and of the options, so changed files are decoded anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from fedbraid.data.dataset import Array
from fedbraid.data.places import cache_directory
from fedbraid.errors import UserError
from fedbraid.files import flush

VERSION = 1
"""Raised when a decoder changes what it makes of the same files."""
SPARE = 256 << 20
"""Bytes of disk that decoding leaves free."""


@dataclass(frozen=True)
class Decoded:
    """What a decoder made of files: arrays (memory-mapped, private to this process) and facts (plain JSON values)."""

    arrays: dict[str, Array]
    facts: dict[str, Any]


@dataclass(frozen=True)
class Shelf:
    """Where a decoder puts its arrays: in files from the start, so that sets larger than memory can be made."""

    folder: Path

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.memmap[Any, Any]:
        """A new array to fill."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        free = shutil.disk_usage(self.folder).free
        if size + SPARE > free:
            raise UserError(
                f"decoding needs {size / 2**30:.1f} GiB in {self.folder.parent} and {free / 2**30:.1f} GiB are free; "
                "make room there, or name another place in FEDBRAID_CACHE"
            )
        return np.lib.format.open_memmap(self._file(name), mode="w+", dtype=np.dtype(dtype), shape=shape)

    def put(self, name: str, values: Array) -> None:
        """An array that is in memory already."""
        self.array(name, values.shape, values.dtype)[...] = values

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.npy"


Decode = Callable[[Shelf], dict[str, Any]]
"""Fills a shelf with arrays and returns the facts."""


def decoded(name: str, sources: Sequence[Path], options: Mapping[str, Any], decode: Decode) -> Decoded:
    """What `decode` makes of `sources`, from the cache if it has been made before."""
    places = cache_directory() / "decoded"
    place = places / f"{name}-{_digest(sources, options)}"
    if not (place / "facts.json").exists():
        places.mkdir(parents=True, exist_ok=True)
        with _only_one(places / f".{place.name}.lock"):
            if not (place / "facts.json").exists():  # another process may have made it meanwhile
                _make(place, decode)
    facts = json.loads((place / "facts.json").read_text(encoding="utf-8"))
    # "c": writable as torch wants it, private to this process, and shared with nobody until written to.
    return Decoded({name: np.load(place / f"{name}.npy", mmap_mode="c") for name in facts["arrays"]}, facts["facts"])


def _make(place: Path, decode: Decode) -> None:
    beside = place.with_name(f".{place.name}.part")
    shutil.rmtree(beside, ignore_errors=True)  # what a killed process left; the lock says that nobody is at work
    beside.mkdir()
    try:
        facts = decode(Shelf(beside))
        arrays = sorted(file.stem for file in beside.glob("*.npy"))
        text = json.dumps({"arrays": arrays, "facts": facts})
        (beside / "facts.json").write_text(text, encoding="utf-8")
        for file in beside.iterdir():
            flush(file)
        shutil.rmtree(place, ignore_errors=True)
        os.replace(beside, place)
        flush(place.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _digest(sources: Sequence[Path], options: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps([VERSION, dict(options)], sort_keys=True, default=str).encode())
    for source in sources:
        found = source.stat()
        digest.update(f"{source.absolute()}|{found.st_size}|{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
