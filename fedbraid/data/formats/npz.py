"""NumPy's archives: arrays without objects, and no larger than they say."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from fedbraid.data.dataset import Array
from fedbraid.errors import UserError

LIMIT = 16 << 30
"""Bytes that one array may promise."""
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an archive. Nothing is unpickled, and no size is believed before it agrees with the other one."""
    with _archive(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        arrays = {}
        for name, info in members.items():
            with archive.open(info) as stream:
                arrays[name] = _array(f"{path}: {name}", stream, info.file_size)
    return arrays


def _array(name: str, stream: IO[bytes], size: int) -> Array:
    version = npy.read_magic(stream)
    if version not in HEADERS:
        raise UserError(f"{name} is an array of an unknown version {version}; save it with numpy.savez")
    shape, by_column, dtype = HEADERS[version](stream)
    if dtype.hasobject:
        raise UserError(f"{name} holds Python objects, which can run code; save numbers or text of a fixed length")
    promised = math.prod(shape) * dtype.itemsize
    if promised > LIMIT:
        raise UserError(f"{name} promises {promised:,} bytes, and {LIMIT:,} are the most that are read")
    if promised != size - stream.tell():
        raise UserError(f"{name} promises {promised:,} bytes and has {size - stream.tell():,}; save it anew")
    values = stream.read(promised)
    if len(values) < promised:
        raise EOFError
    return np.frombuffer(values, dtype).reshape(shape, order="F" if by_column else "C")


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{path} is no whole .npz archive of arrays ({error or 'it is cut short'})") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error})") from error
