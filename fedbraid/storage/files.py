"""Files that are whole or not there: written beside, flushed to disk, then renamed."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file
from torch import Tensor

from fedbraid.errors import UserError

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls types of numbers."""


FULL = {errno.ENOSPC, errno.EDQUOT}
"""Errors of a full disk, and of a user's share of one."""


def is_full(error: BaseException) -> bool:
    """Return whether an error is of a full disk."""
    return isinstance(error, OSError) and error.errno in FULL


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of a full disk name the file that is written: a failed write or flush does not."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise OSError(error.errno, error.strerror or os.strerror(error.errno or 0), str(path)) from error
    except SafetensorError as error:
        number = next((number for number in FULL if f"(os error {number})" in str(error)), None)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def make_directory(path: Path) -> None:
    """A directory to write to, with those above it; or a sentence about why it cannot be one."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        file = next((place for place in (path, *path.parents) if place.is_file()), None)
        reason = f"{file} is a file" if file else (error.strerror or str(error)).lower()
        raise UserError(f"{path} cannot be a directory to write to: {reason}; choose another place") from None
    if not os.access(path, os.W_OK):
        raise UserError(f"{path} cannot be written to: permission denied; choose another place")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to; on success it takes the place of `path` in one step, durably."""
    make_directory(path.parent)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path):
            yield beside
            _put_in_place(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _put_in_place(beside: Path, path: Path) -> None:
    """Give a written file its name, durably."""
    # The order is what makes it safe. The content reaches the disk before the name points to it, or a power cut
    # could leave an empty file under the right name; the directory is flushed last, or the rename itself could be
    # lost after the caller was told that the file is there.
    flush(beside)
    os.replace(beside, path)
    flush(path.parent)


def write_bytes(path: Path, content: bytes, secret: bool = False) -> None:
    """A secret one only its owner can read."""
    with replacing(path) as beside:
        beside.touch(0o600 if secret else 0o666)
        beside.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def save_tensors(path: Path, tensors: Mapping[str, Tensor], secret: bool = False) -> None:
    """Tensors as safetensors, each with memory of its own (views and expanded tensors are copied)."""
    with replacing(path) as beside:
        beside.touch(0o600 if secret else 0o666)
        mode = beside.stat().st_mode  # safetensors writes another file of this name, which only its owner may read
        save_file({key: t.detach().cpu().clone().contiguous() for key, t in tensors.items()}, beside)
        beside.chmod(mode)


def read_tensors(path: Path, checksum: int | None = None) -> dict[str, Tensor]:
    """The tensors of a file, if it is as it was written; an unknown checksum is None."""
    try:
        content = path.read_bytes()
        if checksum is not None and zlib.crc32(content) != checksum:
            raise damaged(path, "its checksum is not the one it was written with")
        return load(content)
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from None


@contextmanager
def opened_tensors(path: Path) -> Iterator[Any]:
    """A file whose tensors are read one by one, or in part."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from None


def damaged(path: Path, why: object) -> UserError:
    return UserError(
        f"{path} is damaged ({why}), so the run cannot go on; put back a copy, or begin anew in another directory"
    )


def checksum(path: Path) -> int:
    """Return a checksum that differs for a file that has changed."""
    total = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            total = zlib.crc32(block, total)
    return total


def save_rows(path: Path, like: Mapping[str, Tensor], count: int, blocks: Iterable[Mapping[str, Tensor]]) -> None:
    """Tensors [count, ...] as safetensors, written block by block, so that they need not fit in memory.

    `like` has one row of each tensor; each of `blocks` has the next few rows of all of them.
    """
    keys = sorted(like, key=lambda key: (-like[key].element_size(), key))  # each begins at a multiple of its size
    bytes_each = {key: like[key].numel() * like[key].element_size() for key in keys}
    begins = dict(zip(keys, accumulate((count * bytes_each[key] for key in keys), initial=0), strict=False))
    header = {
        key: {
            "dtype": NAMES[like[key].dtype],
            "shape": [count, *like[key].shape],
            "data_offsets": [begins[key], begins[key] + count * bytes_each[key]],
        }
        for key in keys
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as beside, open(beside, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        first = file.tell()
        written = 0
        for block in blocks:
            for key in keys:
                file.seek(first + begins[key] + written * bytes_each[key])
                file.write(block[key].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
            written += len(block[keys[0]])
        assert written == count, f"{written} rows of {count} were given"


def flush(path: Path) -> None:
    """Wait until a file, or a directory's entries, are on the disk.

    Windows flushes only files that are open for writing, and has no way to flush a directory.
    """
    windows = os.name == "nt"
    if windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
