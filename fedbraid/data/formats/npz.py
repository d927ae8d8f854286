"""NumPy's archives: arrays without objects, and no larger than they say."""

from __future__ import annotations

import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from fedbraid.data.dataset import Array
from fedbraid.errors import UserError

LIMIT = 16 << 30
"""Bytes that one array may promise."""
AT_ONCE = 1 << 20
"""Bytes that are unpacked together: an archive hands them over in memory of its own."""
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
DAMAGES = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError),
    *(ValueError, OverflowError, NotImplementedError, RuntimeError, MemoryError),
)
"""What `zipfile` and its unpackers fail with where files are damaged."""


def names_in(path: Path) -> tuple[str, ...]:
    """The names of an archive's arrays, none of which is read."""
    with _archive(path) as archive:
        return tuple(_members(archive))


def read_npz(path: Path, wanted: Collection[str]) -> dict[str, Array]:
    """The `wanted` arrays of an archive, as far as they are there; the others cost nothing.

    Nothing is unpickled, and no size is believed before it agrees with the other one.
    """
    arrays = {}
    with _archive(path) as archive:
        for name, info in _members(archive).items():
            if name in wanted:
                with archive.open(info) as stream:
                    arrays[name] = _array(f"{path}: {name}", stream, info.file_size)
    return arrays


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    return {info.filename.removesuffix(".npy"): info for info in archive.infolist()}


def _array(name: str, stream: IO[bytes], size: int) -> Array:
    version = npy.read_magic(stream)
    if version not in HEADERS:
        raise UserError(f"{name} is an array of an unknown version {version}; save it with numpy.savez")
    shape, by_column, dtype = _header(name, version, stream)
    if dtype.hasobject:
        raise UserError(f"{name} holds Python objects, which can run code; save numbers or text of a fixed length")
    promised = math.prod(shape) * dtype.itemsize
    if promised > LIMIT:
        raise UserError(f"{name} promises {promised:,} bytes, and {LIMIT:,} are the most that are read")
    if promised != size - stream.tell():
        raise UserError(f"{name} promises {promised:,} bytes and has {size - stream.tell():,}; save it anew")
    content = np.empty(promised, np.uint8)
    at = 0
    while at < promised:
        part = np.frombuffer(stream.read(min(AT_ONCE, promised - at)), np.uint8)
        if not len(part):
            raise EOFError
        content[at : at + len(part)] = part
        at += len(part)
    return np.ndarray(shape, dtype, content, order="F" if by_column else "C")


def _header(name: str, version: tuple[int, int], stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        return HEADERS[version](stream)
    except (OSError, *DAMAGES):
        raise
    except Exception as error:  # it is parsed as Python, which fails in many ways
        raise UserError(f"{name} has a damaged header ({type(error).__name__}); save it with numpy.savez") from error


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except DAMAGES as error:
        raise UserError(f"{path} is no whole .npz archive of arrays ({error or 'it is cut short'})") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error})") from error
