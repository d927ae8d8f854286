"""Data that a trained model has not seen, read as its training data were: tables, archives, images or arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedbraid.data.common_options import present
from fedbraid.data.dataset import Array, Split
from fedbraid.data.datasets.archive import samples_of
from fedbraid.data.file_kinds import kind_of
from fedbraid.data.formats.class_folders import listing
from fedbraid.data.formats.columns import ColumnTable, open_table
from fedbraid.data.formats.gaps import is_gap, refusal, row_of
from fedbraid.data.formats.image_files import Channels, Frame, decode_images, is_image
from fedbraid.data.formats.npz import read_npz
from fedbraid.data.formats.vocabulary import Texts
from fedbraid.errors import UserError
from fedbraid.training.model_inputs import Inputs

Truth = tuple[str | None, ...]
WAYS = "--missing mean puts the mean of the training rows there, --missing drop leaves such rows out"


@dataclass(frozen=True)
class Reading:
    """Rules for reading a table."""

    label: str = ""  # the label column, if it is there
    text: str = ""  # the column of texts
    missing: str = "refuse"  # empty cells: refuse, mean or drop


@dataclass(frozen=True, eq=False)
class Unseen:
    """Samples, the name of each, and its label where that is known."""

    x: Array
    names: tuple[str, ...]
    truth: Truth


def unseen(given: str | PathLike[str] | Array, inputs: Inputs, how: Reading) -> Unseen:
    """The samples of a file or folder, or those of an array."""
    if not isinstance(given, str | PathLike):
        x = Split(given, given).x  # torch's tensors become arrays
        return _of_array("the array", np.asarray(x), None, inputs)
    path = present("the data", str(given))
    kind = kind_of(path)
    if kind == "csv":
        table = open_table(path)
        return _texts(table, inputs, how) if inputs.tokens else _numbers(table, inputs, how)
    if kind == "npz":
        held = read_npz(path, ["x", "y"])
        if "x" not in held:
            raise UserError(f"{path} must hold x, the samples, and perhaps y, their labels")
        return _of_array(str(path), samples_of(path, "x", held["x"]), held.get("y"), inputs)
    if kind == "folder":
        return _images(path, inputs)
    raise UserError(f"{path} is no .csv, .parquet or .npz file and no folder of images")


def _numbers(table: ColumnTable, inputs: Inputs, how: Reading) -> Unseen:
    if not inputs.features:
        raise UserError(f"the model's inputs have no names to tell the columns of {table.path} by; save an .npz")
    columns = list(inputs.features)
    label = [how.label] if how.label and how.label in table.columns else []
    lacking = [name for name in columns if name not in table.columns]
    if lacking:
        raise UserError(f"{table.path} has no column {lacking[0]!r}, which the model takes; it takes {_few(columns)}")
    if how.missing == "mean" and len(inputs.mean) != len(columns):
        raise UserError("the means of the training rows were not recorded, so gaps cannot be filled with them")
    rows, names, truth = list[list[float]](), list[str](), list[str | None]()
    for number, cells in table.rows([*columns, *label]):
        values = row_of(table.where(number), columns, cells[: len(columns)])
        if any(map(is_gap, values)):
            if how.missing == "refuse":
                raise refusal([table], columns, WAYS)
            if how.missing == "drop":
                continue
            values = [mean if is_gap(value) else value for value, mean in zip(values, inputs.mean, strict=True)]
        rows.append(values)
        names.append(f"{table.counted_in} {number}")
        truth.append(_told(cells[-1]) if label else None)
    _some(table, rows)
    return Unseen(np.array(rows, dtype=np.float32), tuple(names), tuple(truth))


def _texts(table: ColumnTable, inputs: Inputs, how: Reading) -> Unseen:
    if how.text not in table.columns:
        raise UserError(f"{table.path} has no column {how.text!r} of texts; its columns are {_few(table.columns)}")
    label = [how.label] if how.label and how.label in table.columns else []
    texts, names, truth = Texts(), list[str](), list[str | None]()
    for number, cells in table.rows([how.text, *label]):
        texts.add(str(cells[0]))
        names.append(f"{table.counted_in} {number}")
        truth.append(_told(cells[-1]) if label else None)
    _some(table, names)
    x = np.zeros((len(texts), *inputs.shape), dtype=np.int32)
    texts.encode(np.arange(len(texts)), inputs.tokens, x)
    return Unseen(x, tuple(names), tuple(truth))


def _of_array(name: str, x: Array, y: Array | None, inputs: Inputs) -> Unseen:
    if x.ndim == 0 or x.shape[1:] != inputs.shape or not len(x):
        raise UserError(f"{name} has samples of shape {list(x.shape[1:])}; the model takes {list(inputs.shape)}")
    if y is not None and y.shape != x.shape[:1]:
        raise UserError(f"{name} must hold one number in y for each of the {len(x):,} samples in x")
    if inputs.numbers == "floats" and x.dtype.kind in "iu":
        x = x.astype(np.float32)
    truth = (None,) * len(x) if y is None else tuple(_class(value, inputs) for value in y.tolist())
    return Unseen(x, tuple(f"sample {k}" for k in range(len(x))), truth)


def _class(value: float, inputs: Inputs) -> str:
    known = inputs.labels and isinstance(value, int) and 0 <= value < len(inputs.labels)
    return inputs.labels[int(value)] if known else str(value)


def _images(folder: Path, inputs: Inputs) -> Unseen:
    """The images of a folder and of the folders in it, which may be called like their class."""
    if len(inputs.shape) != 3 or inputs.numbers != "bytes" or inputs.shape[0] not in (1, 3):
        raise UserError(f"{folder} is a folder of images, and the model takes samples of shape {list(inputs.shape)}")
    with listing(folder):
        files = sorted(file for file in folder.rglob("*") if is_image(file.name) and file.is_file())
    if not files:
        raise UserError(f"{folder} holds no images")
    channels, height, width = inputs.shape
    x = np.empty((len(files), *inputs.shape), dtype=np.uint8)
    decode_images(files, Frame(cast(Channels, channels), height, width, "crop"), x)
    truth = tuple(file.parent.name if file.parent.name in inputs.labels else None for file in files)
    return Unseen(x, tuple(str(file.relative_to(folder)) for file in files), truth)


def _told(cell: object) -> str | None:
    """Return the column to predict; a class may well be called "none"."""
    return None if cell is None or not str(cell).strip() else str(cell).strip()


def _some(table: ColumnTable, rows: Sequence[Any]) -> None:
    if not rows:
        raise UserError(f"{table.path} has no rows to predict")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
