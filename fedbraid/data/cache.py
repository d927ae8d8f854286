"""Decoded data, kept as memory-mapped arrays: the second start reads no image and needs no memory of its own.

An entry is a folder of `.npy` files and a `facts.json`, written under a temporary name and renamed when it is complete.
Its name holds a digest of the sources' names, sizes and times and of the options, so changed files are decoded anew.
Only its owner may read it: data may be about people. Files that are decoded quickly are not cached.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from fedbraid.data.dataset import Array
from fedbraid.data.paths import cache_directory
from fedbraid.errors import UserError
from fedbraid.storage.files import flush
from fedbraid.storage.locks import lock_file, remove_and_unlock
from fedbraid.storage.private import PRIVATE, private_folder

VERSION = 2
"""Raised when a decoder changes what it makes of the same files."""
SPARE = 256 << 20
"""Bytes of disk that decoding leaves free."""
QUICK = 4 << 20
"""Bytes of a table that are decoded in half a second or so, each time anew; a copy on the disk is not worth that."""
MOST = 256 << 20
"""Bytes of an array that is not kept, and so is in memory."""


@dataclass(frozen=True)
class Decoded:
    """Decoded files: arrays (memory-mapped, private to this process) and facts (plain JSON values)."""

    arrays: dict[str, Array]
    facts: dict[str, Any]


@dataclass(frozen=True)
class ArrayWriter:
    """Writer of a decoder's arrays, in files from the start, so that a set may be larger than memory."""

    folder: Path

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """A new array to fill."""
        size = _bytes(shape, dtype)
        free = shutil.disk_usage(self.folder).free
        if size + SPARE > free:
            needed = Decimal(size) / 2**30  # which may be beyond any float
            raise UserError(
                f"decoding needs {needed:.1f} GiB in {self.folder.parent} and {free / 2**30:.1f} GiB are free; "
                "make room there, or name another entry in FEDBRAID_CACHE"
            )
        file = self.folder / f"{name}.npy"
        with _writing(self.folder.parent):
            values: Array = np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
            _reserve(file)
        return values

    def put(self, name: str, values: Array) -> None:
        """An array that is in memory already."""
        self.array(name, values.shape, values.dtype)[...] = values

    def filled(self, name: str) -> Array:
        """An array that has been made, to be read."""
        values: Array = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return values


class _TooLarge(Exception):
    """An array that memory is not taken for."""


@dataclass(frozen=True)
class _MemoryWriter(ArrayWriter):
    """A writer that keeps its arrays in memory."""

    arrays: dict[str, Array] = field(default_factory=dict)

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        if _bytes(shape, dtype) > MOST:
            raise _TooLarge
        self.arrays[name] = np.zeros(shape, dtype)
        return self.arrays[name]

    def filled(self, name: str) -> Array:
        return self.arrays[name]


Decode = Callable[[ArrayWriter], dict[str, Any]]
"""Writes arrays through an `ArrayWriter` and returns the facts."""


def decoded(
    name: str, sources: Sequence[Path], options: Mapping[str, Any], decode: Decode, *, keep: bool = True
) -> Decoded:
    """Return the arrays and facts of `decode` for `sources`, from the cache where an earlier call left them there.

    Without `keep` nothing is cached, unless an array is too large for memory. `options` are part of the entry's key.
    """
    if not keep:
        with suppress(_TooLarge):
            writer = _MemoryWriter(Path())
            facts = json.loads(json.dumps(decode(writer)))  # as it would come back from the disk
            return Decoded(writer.arrays, facts)
    folder = cache_directory() / "decoded"
    entry = folder / f"{name}-{_digest(sources, options)}"
    kept = _opened(entry)
    if kept is None:
        with _only_one(folder, entry.name):
            kept = _opened(entry)  # another process may have made it meanwhile
            if kept is None:
                _sweep(folder)
                kept = _made(entry, decode)
    return kept


def is_quick(sources: Sequence[Path]) -> bool:
    """Tell if tables are small enough to be decoded in each run. Packed files count eight times their size."""
    return sum(regular(source).st_size * (1 if source.suffix == ".csv" else 8) for source in sources) <= QUICK


def regular(source: Path) -> os.stat_result:
    """Return the status of a regular file; pipes and devices, which cannot be read twice, raise `UserError`."""
    try:
        found = os.stat(source)
    except OSError as error:
        raise UserError(f"{source} cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{source} is no regular file; data are read from files, not from folders, pipes or devices")
    return found


def _opened(entry: Path) -> Decoded | None:
    """Load the entry at `entry`, or return None if there is none that is complete."""
    try:
        told = json.loads((entry / "facts.json").read_text(encoding="utf-8"))
        # "c": writable as torch wants it, private to this process, and shared with nobody until written to.
        arrays = {name: np.load(entry / f"{name}.npy", mmap_mode="c") for name in told["arrays"]}
        return Decoded(arrays, told["facts"])
    except (OSError, EOFError, ValueError, KeyError, TypeError):  # nothing there, files cut short, files missing
        return None


def _bytes(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def _made(entry: Path, decode: Decode) -> Decoded:
    beside = _beside(entry)
    shutil.rmtree(beside, ignore_errors=True)  # what a killed process left; the lock says that nobody is at work
    try:
        with _writing(entry.parent):
            beside.mkdir(mode=PRIVATE)
        facts = decode(ArrayWriter(beside))
        with _writing(entry.parent):
            arrays = sorted(file.stem for file in beside.glob("*.npy"))
            (beside / "facts.json").write_text(json.dumps({"arrays": arrays, "facts": facts}), encoding="utf-8")
            for file in beside.iterdir():
                file.chmod(0o600)
                flush(file)
            shutil.rmtree(entry, ignore_errors=True)
            os.replace(beside, entry)
            flush(entry.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    made = _opened(entry)
    assert made is not None, f"{entry} was written and cannot be read"
    return made


@contextmanager
def _only_one(folder: Path, name: str) -> Iterator[None]:
    """One process at a time; the system opens the lock of a killed one."""
    file = folder / f".{name}.lock"
    with _writing(folder):
        private_folder(folder)  # also one that earlier versions left open to others
        lock = _locked(file, wait=True)
    try:
        yield
    finally:
        remove_and_unlock(file, lock)


def _locked(file: Path, *, wait: bool) -> int:
    """A lock on `file`. Its holder removes the file, so whoever got the lock of one that is gone tries the new one."""
    while True:
        lock = os.open(file, os.O_RDWR | os.O_CREAT)
        try:
            lock_file(lock, wait=wait)
            if os.path.samestat(os.fstat(lock), os.stat(file)):
                return lock
        except FileNotFoundError:  # removed by who held it
            pass
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _beside(entry: Path) -> Path:
    return entry.with_name(f".{entry.name}.part")


def _sweep(folder: Path) -> None:
    """Remove the partial entries and locks that killed processes left: a lock that is free has no process behind it."""
    left = [entry for entry in folder.iterdir() if entry.name[0] == "." and entry.suffix in (".part", ".lock")]
    for name in {entry.stem[1:] for entry in left}:
        file = folder / f".{name}.lock"
        with suppress(OSError):  # somebody is at work, or what is left is another user's
            lock = _locked(file, wait=False)
            try:
                shutil.rmtree(_beside(folder / name), ignore_errors=True)
            finally:
                remove_and_unlock(file, lock)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn an OS error of a write to the cache into a `UserError` that names a remedy."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"decoded data cannot be kept in {folder} ({error.strerror or error}); "
            "make room or give the right to write there, or name another entry in FEDBRAID_CACHE"
        ) from error


def _reserve(file: Path) -> None:
    """Take the disk's blocks now: a disk that is full later would kill the process that writes to mapped memory."""
    if not hasattr(os, "posix_fallocate"):  # macOS
        return
    with open(file, "r+b") as opened:
        try:
            os.posix_fallocate(opened.fileno(), 0, os.path.getsize(file))
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot reserve
                raise


def _digest(sources: Sequence[Path], options: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps([VERSION, dict(options)], sort_keys=True, default=str).encode())
    for source in sources:
        found = regular(source)
        digest.update(os.fsencode(os.path.abspath(source)))  # a name may be any bytes
        digest.update(f"|{found.st_size}|{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
