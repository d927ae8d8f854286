"""Tables with named columns, in CSV files with a header or in Parquet files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbraid.data.cache import regular
from fedbraid.data.formats import parquet
from fedbraid.data.formats.csv_tables import rows
from fedbraid.errors import UserError


@dataclass(frozen=True)
class ColumnTable:
    """A file and its columns' names."""

    path: Path
    columns: tuple[str, ...]
    counted_in: str = "line"  # what its rows are numbered by: lines of text, or rows

    def rows(self, wanted: Sequence[str]) -> Iterator[tuple[int, list[object]]]:
        """The cells of the `wanted` columns of every row, and the row's number."""
        there = set(self.columns)
        for name in wanted:
            if name not in there:
                raise UserError(f"{self.path} has no column {name!r}; its columns are {', '.join(self.columns)}")
        return _parquet_rows(self, wanted) if self.counted_in == "row" else _csv_rows(self, wanted)

    def where(self, number: int) -> str:
        return f"{self.path}, {self.counted_in} {number}"


def open_table(path: Path) -> ColumnTable:
    regular(path)  # it is read several times, which a pipe is not
    if path.suffix == ".parquet":
        return ColumnTable(path, parquet.columns(path), "row")
    header = next(rows(path), None)
    if header is None:
        raise UserError(f"{path} is empty; its first line must name the columns")
    names = [name.strip() for name in header[1]]
    ((name, count),) = Counter(names).most_common(1)
    if count > 1:
        raise UserError(f"{path} names the column {name!r} twice; every column needs a name of its own")
    return ColumnTable(path, tuple(names))


def _csv_rows(table: ColumnTable, wanted: Sequence[str]) -> Iterator[tuple[int, list[object]]]:
    number = {name: at for at, name in enumerate(table.columns)}
    positions = [number[name] for name in wanted]
    following = rows(table.path, widths=(len(table.columns),))
    next(following)  # the header
    for line, cells in following:
        yield line, [cells[k] for k in positions]


def _parquet_rows(table: ColumnTable, wanted: Sequence[str]) -> Iterator[tuple[int, list[object]]]:
    number = 0
    for block in parquet.blocks(table.path, wanted):
        for cells in zip(*block, strict=True):
            number += 1
            yield number, list(cells)
