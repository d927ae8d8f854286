"""Parquet files, part by part, through pyarrow, which only they need."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedbraid.errors import UserError

AT_ONCE = 1 << 13
"""Rows that are decoded together."""
MOST = 4 << 30
"""Bytes that a row group may unpack to. Writers make groups of some hundred MiB at most."""


def columns(path: Path) -> tuple[str, ...]:
    """The names of a file's columns."""
    with _opened(path) as file:
        return tuple(file.schema_arrow.names)


def count(path: Path) -> int:
    """The number of a file's rows, as it says itself."""
    with _opened(path) as file:
        return int(file.metadata.num_rows)


def class_names(path: Path, column: str) -> tuple[str, ...]:
    """Return the names of a column's classes from the metadata for Hugging Face's library, where the file has it."""
    with _opened(path) as file:
        note = (file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        names = json.loads(note)["info"]["features"][column]["names"]
        return tuple(str(name) for name in names)
    except (ValueError, KeyError, TypeError):
        return ()


def blocks(path: Path, wanted: Sequence[str], at_once: int = AT_ONCE) -> Iterator[list[list[Any]]]:
    """The `wanted` columns as Python's values, in blocks of rows."""
    with _opened(path) as file:
        missing = [name for name in wanted if name not in file.schema_arrow.names]
        if missing:
            has = ", ".join(file.schema_arrow.names)
            raise UserError(f"{path} has no column {missing[0]!r}; its columns are {has}")
        for batch in file.iter_batches(at_once, columns=list(wanted)):
            yield [batch.column(name).to_pylist() for name in wanted]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"{path} needs pyarrow to be read; `pip install fedbraid[hub]` brings it") from None
    try:
        with parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).total_byte_size
                if size > MOST:
                    raise UserError(f"{path} has a row group of {size:,} bytes; {MOST:,} are the most that are read")
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"{path} is no whole Parquet file ({reason})") from None
