"""A partition that somebody else has made: a table of which client holds which sample."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedbraid.data.dataset import Array, Partition
from fedbraid.data.shares import NOBODY, Indices, held, some
from fedbraid.errors import UserError

Column = list[str]


def assignment(labels: Array, clients: int | None, path: str = "") -> Partition:
    """The partition in the CSV or Parquet file `path`, whose columns `sample` and `client` say who holds what.

    Samples are numbered from 0 in the data set's order; without the column `sample` the rows are in that order. A
    sample whose client is left empty is held by nobody. Clients may have names: they are numbered in the order of their
    names (by size, if all are whole numbers), which the recipe keeps.
    """
    total = some(labels)
    if not path:
        raise UserError("an assignment needs a file with the columns sample and client, such as path=clients.csv")
    file = Path(path)
    samples, holders = _read(file)
    places = _in_order(file, len(holders), total) if samples is None else _numbers(file, samples, total)
    names = _sorted(set(holders) - {""})
    if not names:
        raise UserError(f"{file} names no client; its column 'client' must say who holds each sample")
    if clients is not None and clients != len(names):
        raise UserError(f"{file} has {len(names)} clients, not {clients}; leave the number of clients out")
    number = {name: k for k, name in enumerate(names)} | {"": NOBODY}
    owners = np.empty(total, dtype=np.int64)
    owners[places] = [number[holder] for holder in holders]
    return Partition(held(owners, len(names)), {"names": names})


def _in_order(file: Path, rows: int, total: int) -> Indices:
    if rows != total:
        raise UserError(
            f"{file} has {rows} rows for {total} training samples; without a column 'sample' there must be one for each"
        )
    return np.arange(total)


def _numbers(file: Path, samples: Column, total: int) -> Indices:
    """The samples that the rows are about: each one once."""
    places = np.array([_number(file, text, total) for text in samples], dtype=np.int64)
    rows = np.bincount(places, minlength=total)
    if rows.max() > 1:
        raise UserError(f"{file} has sample {rows.argmax()} in {rows.max()} rows; a sample has one client")
    if rows.min() < 1:
        raise UserError(
            f"{file} has no row for {np.count_nonzero(rows == 0)} training samples, such as {rows.argmin()}; every one "
            "needs a row, with an empty client if nobody is to hold it"
        )
    return places


def _number(file: Path, text: str, total: int) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{file} has a sample {text!r}; samples are whole numbers from 0 to {total - 1}")
    if int(text) >= total:
        raise UserError(f"{file} has a sample {text}, but the training samples are numbered from 0 to {total - 1}")
    return int(text)


def _sorted(names: set[str]) -> list[str]:
    if all(name.isascii() and name.isdigit() for name in names):
        return sorted(names, key=int)
    return sorted(names)


# --- files


def _read(file: Path) -> tuple[Column | None, Column]:
    """The columns `sample` (None if there is none) and `client`, as text."""
    try:
        columns = _parquet(file) if file.suffix == ".parquet" else _csv(file)
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"there is no file {file}") from None
    except (ValueError, csv.Error, OSError) as error:
        kind = "a Parquet" if file.suffix == ".parquet" else "a CSV"
        raise UserError(f"{file} cannot be read as {kind} file ({str(error).splitlines()[0]})") from None
    if "client" not in columns:
        found = ", ".join(map(repr, columns)) or "none"
        raise UserError(f"{file} has no column 'client' that says who holds each sample; its columns are {found}")
    return columns.get("sample"), columns["client"]


def _csv(file: Path) -> dict[str, Column]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(lines)
        header = [name.strip() for name in next(rows, [])]
        cells = [row for row in rows if row]
    ragged = next((row for row in cells if len(row) != len(header)), None)
    if ragged is not None:
        raise ValueError(f"the row {','.join(ragged)!r} has {len(ragged)} cells under {len(header)} headings")
    return {name: [row[place].strip() for row in cells] for place, name in enumerate(header)}


def _parquet(file: Path) -> dict[str, Column]:
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise UserError(f"reading {file} needs pyarrow: pip install pyarrow, or give a CSV file") from None
    table = parquet.read_table(file)
    wanted = [name for name in table.column_names if name in ("sample", "client")]
    return {name: _texts(table[name].to_pylist()) for name in wanted}


def _texts(values: Sequence[object]) -> Column:
    return ["" if value is None else str(value) for value in values]
