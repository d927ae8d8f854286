"""A partition that somebody else has made: a table of which client holds which sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedbraid.data.common_options import present
from fedbraid.data.dataset import Array, Partition
from fedbraid.data.formats.columns import ColumnTable, open_table
from fedbraid.data.partitions.shares import NOBODY, Indices, held, some
from fedbraid.errors import UserError


def assignment(labels: Array, clients: int | None, path: str | Path = "") -> Partition:
    """The partition in the CSV or Parquet file `path`, whose columns `sample` and `client` say who holds what.

    Samples are numbered from 0 in the data set's order; without the column `sample` the rows are in that order. A
    sample whose client is left empty is held by nobody. Clients may have names: they are numbered in the order of their
    names (by size, if all are whole numbers), which the recipe keeps.
    """
    total = some(labels)
    if not isinstance(path, str | Path) or not path:
        raise UserError("an assignment needs a file with the columns sample and client, such as path=clients.csv")
    table = open_table(present("path", path))
    holders = [_text(cell) for _, (cell,) in table.rows(["client"])]
    samples = _numbers(table, total) if "sample" in table.columns else _in_order(table.path, len(holders), total)
    names = _sorted(set(holders) - {""})
    if not names:
        raise UserError(f"{table.path} names no client; its column 'client' must say who holds each sample")
    if clients is not None and clients != len(names):
        raise UserError(f"{table.path} has {len(names)} clients, not {clients}; leave the number of clients out")
    number = {name: k for k, name in enumerate(names)} | {"": NOBODY}
    owners = np.empty(total, dtype=np.int64)
    owners[samples] = [number[holder] for holder in holders]
    return Partition(held(owners, len(names)), {"names": names})


def _in_order(file: Path, rows: int, total: int) -> Indices:
    if rows != total:
        raise UserError(
            f"{file} has {rows} rows for {total} training samples; without a column 'sample' there must be one for each"
        )
    return np.arange(total)


def _numbers(table: ColumnTable, total: int) -> Indices:
    """The samples that the rows are about: each one once."""
    cells = ((table.where(row), _text(cell)) for row, (cell,) in table.rows(["sample"]))
    samples = np.fromiter((_number(where, text, total) for where, text in cells), dtype=np.int64)
    rows = np.bincount(samples, minlength=total)
    if rows.max() > 1:
        raise UserError(f"{table.path} has sample {rows.argmax()} in {rows.max()} rows; a sample has one client")
    if rows.min() < 1:
        raise UserError(
            f"{table.path} has no row for {np.count_nonzero(rows == 0)} training samples, such as {rows.argmin()}; "
            "every one needs a row, with an empty client if nobody is to hold it"
        )
    return samples


def _number(where: str, text: str, total: int) -> int:
    if _is_whole(text) and _size(text) < _size(str(total)):
        return int(_size(text)[1])
    shown = text if len(text) < 40 else text[:36] + "..."
    raise UserError(f"{where} has the sample {shown!r}; samples are whole numbers from 0 to {total - 1}")


def _sorted(names: set[str]) -> list[str]:
    if all(map(_is_whole, names)):
        return sorted(names, key=lambda name: (_size(name), name))
    return sorted(names)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _size(digits: str) -> tuple[int, str]:
    """Orders whole numbers by size, of any length: int() refuses thousands of digits."""
    significant = digits.lstrip("0") or "0"
    return len(significant), significant


def _text(cell: object) -> str:
    return "" if cell is None else str(cell).strip()
