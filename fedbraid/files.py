"""Files that are whole or not there: written beside, flushed to disk, then renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to; on success it takes the place of `path` in one step, durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield beside
        flush(beside)
        os.replace(beside, path)
        flush(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as beside:
        beside.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Tensors as safetensors, each with memory of its own (views and expanded tensors are copied)."""
    with replacing(path) as beside:
        save_file({key: t.detach().cpu().clone().contiguous() for key, t in tensors.items()}, beside)


def flush(path: Path) -> None:
    """Wait until a file, or a directory's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
