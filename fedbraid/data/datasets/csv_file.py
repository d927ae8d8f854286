"""A table of the user's own: rows of numbers, or texts, with a label and perhaps a user."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from fedbraid.config.registry import whole
from fedbraid.core.random import stream
from fedbraid.data.cache import ArrayWriter, decoded, is_quick
from fedbraid.data.common_options import one_of, own_path, share, true_or_false
from fedbraid.data.dataset import Array, Dataset, Split
from fedbraid.data.datasets.cached import Rows, SplitWriter, rows_of, split, write_labels, write_texts
from fedbraid.data.datasets.labels import in_order
from fedbraid.data.datasets.normal import Normal, measured
from fedbraid.data.formats.columns import ColumnTable, open_table
from fedbraid.data.formats.csv_tables import numbers
from fedbraid.data.formats.gaps import is_gap, refusal, row_of
from fedbraid.data.formats.vocabulary import Names, Texts
from fedbraid.data.held_out import held_out
from fedbraid.errors import UserError

AT_ONCE = 1 << 12
"""Rows of numbers that are laid down together."""
MISSING = ("refuse", "mean", "drop")
"""What may be done about empty cells."""


@dataclass(frozen=True)
class Columns:
    """The roles of a table's columns; "" and () where a role has none."""

    label: str
    is_class: bool
    users: str
    text: str
    features: tuple[str, ...]

    @property
    def marks(self) -> list[str]:
        """All but the numbers."""
        return [name for name in (self.label, self.users, self.text) if name]

    def is_whole(self, cells: Sequence[object]) -> bool:
        """Tell if no cell of a row is empty, marks first; a class or a user may be called "none"."""
        marks, values = cells[: len(self.marks)], cells[len(self.marks) :]
        rated = [] if self.is_class else [marks[0]]
        return not (any(map(_is_empty, marks)) or any(map(is_gap, (*rated, *values))))


@dataclass(frozen=True)
class CsvOptions:
    """The other options, once they are known to make sense."""

    test_share: float
    seed: int
    words: int
    length: int
    missing: str


@dataclass(frozen=True, eq=False)
class Marks:
    """All that is read of the rows but numbers, table after table."""

    labels: tuple[str, ...]
    targets: Array
    users: Array | None
    texts: Texts
    ends: list[int]  # how many rows there are up to the end of each table


def csv_file(
    path: str = "",
    label: str = "label",
    users: str = "",
    text: str = "",
    features: Sequence[str] = (),
    test: str = "",
    task: str = "classification",
    test_share: float = 0.2,
    seed: int = 0,
    standardise: bool = True,
    words: int = 20000,
    length: int = 64,
    missing: str = "refuse",
) -> Dataset:
    """A CSV file with a header, or a Parquet file, at `path`: one sample a row.

    `label` names the column to predict, `users` the one that says whose a row is. Samples are the column `text`, as
    the numbers of its first `length` words, out of the `words` most frequent; or else the columns `features`, which
    are all others if none are named. `standardise` brings each, and the target of a regression, to mean 0 and
    deviation 1 over the training rows: a loss of 1 is then what predicting the mean would have. Test rows are those of
    the file `test`, or else `test_share` of each user's rows, at random by `seed` (of each class's rows, where there
    are no users). Empty cells are refused unless `missing` says what to do: "mean" puts the mean of the column's
    training rows there, "drop" leaves out rows that have any.
    """
    one_of("task", task, ("classification", "regression"))
    true_or_false("standardise", standardise)
    tables = [open_table(own_path("csv", "path", path))]
    if test:
        tables.append(open_table(own_path("csv", "test", test)))
    columns = _columns(tables[0], label, task == "classification", users, text, features)
    wanted = CsvOptions(
        test_share=share("test_share", test_share),
        seed=whole("seed", seed, 0),
        words=whole("words", words),
        length=whole("length", length),
        missing=one_of("missing", missing, MISSING),
    )
    sources = [table.path for table in tables]
    options = asdict(columns) | asdict(wanted)
    keep = not is_quick(sources)
    made = decoded("csv", sources, options, lambda writer: _decode(writer, tables, columns, wanted), keep=keep)
    scale = made.facts["scale"] if standardise else None
    train, test_rows = split(made, "train"), split(made, "test")
    target = measured(train.y[:, None]) if standardise and not columns.is_class else Normal((0.0,), (1.0,))
    if standardise and not columns.is_class:
        train, test_rows = _with_target(train, target), _with_target(test_rows, target)
    return Dataset(
        name="csv",
        train=train,
        test=test_rows,
        classes=len(made.facts["labels"]) or 1,
        task="classification" if columns.is_class else "regression",
        mean=tuple(scale["mean"]) if scale else (0.0,),
        std=tuple(scale["std"]) if scale else (1.0,),
        labels=tuple(made.facts["labels"]),
        tokens=tuple(made.facts["tokens"]),
        features=columns.features,
        target=(target.mean[0], target.std[0]),
        source=str(sources[0]),
    )


def _columns(table: ColumnTable, label: str, is_class: bool, users: str, text: str, features: Sequence[str]) -> Columns:
    is_list = isinstance(features, Sequence) and not isinstance(features, str)
    if not is_list or not all(isinstance(name, str) for name in features):
        raise UserError(f"features must be a list of columns such as ['height', 'width'], not {features!r}")
    if text and features:
        raise UserError("samples are either the column `text` or the columns `features`; name one of the two")
    if not label or label in (users, text, *features):
        raise UserError("label must name the column to predict, which is none of the features, the text or the users")
    others = () if text else tuple(features) or tuple(c for c in table.columns if c not in (label, users))
    columns = Columns(label, is_class, users, text, others)
    if label not in table.columns:
        raise UserError(
            f"{table.path} has no column {label!r}; say by data.label which one is to be predicted: "
            f"{', '.join(table.columns)}"
        )
    table.rows((*columns.marks, *others))  # says which column is missing
    if not text and not others:
        raise UserError(f"{table.path} has no columns besides the label and the user; samples need at least one")
    return columns


def _with_target(rows: Split, target: Normal) -> Split:
    """The rows with their target in units of its deviation: unscaled, large targets make training diverge."""
    scaled = (rows.y.astype(np.float64) - target.mean[0]) / target.std[0]
    return replace(rows, y=scaled.astype(np.float32))


def _decode(writer: ArrayWriter, tables: list[ColumnTable], columns: Columns, wanted: CsvOptions) -> dict[str, Any]:
    marks = _read_marks(tables, columns, wanted)
    if len(tables) > 1:
        is_test = np.arange(len(marks.targets)) >= marks.ends[0]
    else:
        is_test = held_out(_groups(marks, columns), wanted.test_share, stream(wanted.seed, "csv split"))
    rows = rows_of(is_test, [table.path for table in tables])
    write_labels(writer, rows, marks.targets, marks.users)
    if columns.text:
        texts = write_texts(writer, rows, marks.texts, wanted.words, wanted.length)
        return texts | {"labels": marks.labels, "scale": None}
    scale = _write_numbers(writer, rows, tables, columns, wanted)
    return {"labels": marks.labels, "tokens": (), "scale": asdict(scale)}


def _groups(marks: Marks, columns: Columns) -> Array:
    """Within what test rows are drawn: users, else classes, else all together."""
    if marks.users is not None:
        return marks.users
    return marks.targets if columns.is_class else np.zeros_like(marks.targets)


def _rows(
    table: ColumnTable, names: Sequence[str], columns: Columns, wanted: CsvOptions
) -> Iterator[tuple[int, list[object]]]:
    """The cells of the columns `names`, of all rows or of those that are whole."""
    if wanted.missing != "drop":
        yield from table.rows(names)
        return
    everything = [*columns.marks, *columns.features]
    positions = [everything.index(name) for name in names]
    for row, cells in table.rows(everything):
        if columns.is_whole(cells):
            yield row, [cells[k] for k in positions]


def _read_marks(tables: list[ColumnTable], columns: Columns, wanted: CsvOptions) -> Marks:
    texts, known, people = Texts(), Names(), Names()
    targets, users, ends = array("d"), array("i"), list[int]()
    for table in tables:
        for row, cells in _rows(table, columns.marks, columns, wanted):
            filled = [_filled(table, row, name, cell) for name, cell in zip(columns.marks, cells, strict=True)]
            if columns.text:
                texts.add(str(filled.pop()))
            if columns.users:
                users.append(people.number(str(filled.pop())))
            if not columns.is_class:
                targets.extend(numbers(table.where(row), [columns.label], filled))
                continue
            label = str(filled[0]).strip()
            if ends and label not in known:
                raise UserError(f"{table.where(row)} has the label {label!r}, which {tables[0].path} has not")
            targets.append(known.number(label))
        if len(targets) == sum(ends[-1:]):
            whole_ones = " without empty cells" if wanted.missing == "drop" else ""
            raise UserError(f"{table.path} has no rows{whole_ones} below its header; samples are rows")
        ends.append(len(targets))
    owners = np.array(users, dtype=np.int32) if columns.users else None
    if not columns.is_class:
        return Marks((), np.array(targets, dtype=np.float32), owners, texts, ends)
    labels = in_order(known.names())
    number = {label: k for k, label in enumerate(labels)}
    classes = np.array([number[name] for name in known.names()], dtype=np.int64)
    return Marks(labels, classes[np.array(targets, dtype=np.int64)], owners, texts, ends)


def _filled(table: ColumnTable, row: int, column: str, cell: object) -> object:
    if _is_empty(cell):
        raise UserError(
            f"{table.where(row)}, column {column} is empty; every row needs one (data.missing=drop leaves out those "
            "without)"
        )
    return cell


def _is_empty(cell: object) -> bool:
    return cell is None or cell == ""


def _write_numbers(
    writer: ArrayWriter, rows: Rows, tables: list[ColumnTable], columns: Columns, wanted: CsvOptions
) -> Normal:
    """The second reading, which is the first of the numbers: no more than a block of them is in memory.

    Returns the means and deviations of the training rows.
    """
    features, gaps = columns.features, False
    samples_writer = SplitWriter(writer, rows, (len(features),))
    for table in tables:
        read = (row_of(table.where(row), features, cells) for row, cells in _rows(table, features, columns, wanted))
        while some := list(islice(read, AT_ONCE)):
            block = np.array(some)
            gaps = gaps or bool(np.isnan(block).any())
            if gaps and wanted.missing == "refuse":
                raise refusal(tables, features)
            samples_writer.add(block)
    if gaps:
        _fill(samples_writer.arrays["train"], samples_writer.arrays["test"], tables[0], features)
    return measured(samples_writer.arrays["train"])


def _fill(train: Array, test: Array, table: ColumnTable, features: Sequence[str]) -> None:
    """Put the mean of a column's training rows where it has gaps."""
    for column, name in enumerate(features):
        known = train[:, column][~np.isnan(train[:, column])]
        if not len(known):
            raise UserError(f"{table.path}: column {name} is empty in all rows to train on; leave it out")
        for part in (train, test):
            part[np.isnan(part[:, column]), column] = known.mean(dtype=np.float64)
