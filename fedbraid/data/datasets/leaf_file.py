"""A set of the user's own in LEAF's JSON: vectors, images or texts by user."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbraid.config.registry import whole
from fedbraid.core.random import stream
from fedbraid.data.cache import ArrayWriter, decoded
from fedbraid.data.common_options import one_of, own_path, share
from fedbraid.data.dataset import Array, Dataset
from fedbraid.data.datasets.cached import SplitWriter, rows_of, split, write_labels, write_texts
from fedbraid.data.datasets.labels import in_order
from fedbraid.data.formats.csv_tables import LARGEST, numbers
from fedbraid.data.formats.leaf import json_files, samples
from fedbraid.data.formats.vocabulary import Names, Texts
from fedbraid.data.held_out import held_out
from fedbraid.errors import UserError

MOST_CLASSES = 1 << 20
"""Beyond that a whole number is hardly a class."""


@dataclass(frozen=True)
class LeafOptions:
    """The options, once they are known to make sense."""

    shape: tuple[int, ...]
    is_class: bool
    test_share: float
    seed: int
    words: int
    length: int


def leaf_file(
    path: str = "",
    shape: Sequence[int] = (),
    task: str = "classification",
    test_share: float = 0.2,
    seed: int = 0,
    words: int = 20000,
    length: int = 64,
) -> Dataset:
    """LEAF's JSON at `path`: a folder with train/ and test/, a folder of files, or one file.

    Samples are lists of numbers, brought to `shape` if it is given (such as [1, 28, 28]), or texts, as the numbers of
    their first `length` words out of the `words` most frequent. Labels are classes 0, 1, … or names; with the task
    "regression" any numbers. Where there is no test/, `test_share` of each user's samples are for testing, at random
    by `seed`.
    """
    root = own_path("leaf", "path", path)
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise UserError(f"shape must be a list of sides such as [1, 28, 28], not {shape!r}")
    wanted = LeafOptions(
        shape=tuple(whole("each side in shape", side) for side in shape),
        is_class=one_of("task", task, ("classification", "regression")) == "classification",
        test_share=share("test_share", test_share),
        seed=whole("seed", seed, 0),
        words=whole("words", words),
        length=whole("length", length),
    )
    parts = _parts(root)
    sources = [file for part in parts for file in part]
    made = decoded("leaf", sources, asdict(wanted), lambda writer: _decode(writer, parts, wanted))
    return Dataset(
        name="leaf",
        train=split(made, "train"),
        test=split(made, "test"),
        classes=made.facts["classes"],
        task="classification" if wanted.is_class else "regression",
        labels=tuple(made.facts["labels"]),
        tokens=tuple(made.facts["tokens"]),
        source=str(root),
    )


def _parts(root: Path) -> list[Sequence[Path]]:
    """The files of train and of test, or all files as one part where nobody has split them."""
    if root.is_file():
        return [[root]]
    names = [name for name in ("train", "test") if (root / name).is_dir()]
    parts = [json_files(root / name) for name in names] or [json_files(root)]
    if len(names) == 1 or not all(parts):
        raise UserError(f"{root} must hold JSON files, or the folders train/ and test/ with JSON files in both")
    return parts


@dataclass(frozen=True, eq=False)
class Classes:
    """The target of every sample, and the classes' names."""

    y: Array
    count: int
    names: tuple[str, ...] = ()


class LeafSamples:
    """Collector of the samples that files hold, all of one kind, with their labels and users."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._people = Names()
        self.users = array("i")
        self.labels: list[Any] = []
        self.arrays: list[NDArray[np.float32]] = []
        self.texts = Texts()

    def add(self, where: str, user: str, x: list[Any], y: list[Any]) -> None:
        if not x:
            return
        self.users.extend([self._people.number(user)] * len(x))
        self.labels.extend(y)
        if all(isinstance(text, str) for text in x) and not self.arrays:
            for text in x:
                self.texts.add(text)
        elif len(self.texts):
            raise UserError(f"{where} has samples that are no texts, as those before are")
        else:
            self.arrays.append(self._numbers(where, x))

    def _numbers(self, where: str, x: list[Any]) -> NDArray[np.float32]:
        try:
            values = np.array(x)
        except ValueError:  # lists of several lengths
            values = np.array(None)
        if values.dtype.kind not in "iuf" or values.ndim < 2 or not values.size:  # texts, nulls, single numbers
            raise UserError(f"{where} has samples that are not lists of numbers, all of one length of at least 1")
        if np.abs(values).max(initial=0) > LARGEST:
            raise UserError(f"{where} has numbers that do not fit 32 bits; scale them down")
        if self._shape:
            if values[0].size != math.prod(self._shape):
                sides = list(self._shape)
                raise UserError(f"{where} has samples of {values[0].size} numbers, which do not fit the shape {sides}")
            values = values.reshape(-1, *self._shape)
        if self.arrays and values.shape[1:] != self.arrays[0].shape[1:]:
            before, here = self.arrays[0][0].size, values[0].size
            raise UserError(f"{where} has samples of {here} numbers and those before have {before}; all must be alike")
        return values.astype(np.float32)


def _decode(writer: ArrayWriter, parts: list[Sequence[Path]], wanted: LeafOptions) -> dict[str, Any]:
    held, ends = LeafSamples(wanted.shape), []
    target: Callable[[str, Any], Any] = _class if wanted.is_class else _target
    for part in parts:
        for file in part:
            for user, x, y in samples(file):
                where = f"{file}: user {user!r}"
                held.add(where, user, x, [target(where, label) for label in y])
        ends.append(len(held.labels))
    users = np.array(held.users, dtype=np.int32)
    if len(parts) > 1:
        if wanted.is_class:
            _check_known(parts, set(held.labels[: ends[0]]), held.labels[ends[0] :])
        is_test = np.arange(len(users)) >= ends[0]
    else:
        is_test = held_out(users, wanted.test_share, stream(wanted.seed, "leaf split"))
    rows = rows_of(is_test, parts[0])
    classes = _classes(parts[0][0], held.labels) if wanted.is_class else Classes(np.array(held.labels, np.float32), 1)
    write_labels(writer, rows, classes.y, users)
    facts = {"classes": classes.count, "labels": classes.names, "tokens": ()}
    if not held.arrays:
        return facts | write_texts(writer, rows, held.texts, wanted.words, wanted.length)
    samples_writer = SplitWriter(writer, rows, held.arrays[0].shape[1:])
    for values in held.arrays:
        samples_writer.add(values)
    return facts


def _check_known(parts: list[Sequence[Path]], known: set[Any], tested: list[Any]) -> None:
    foreign = next((label for label in tested if label not in known), None)
    if known and foreign is not None:
        train, test = (part[0].parent for part in parts)
        raise UserError(f"{test} has the label {foreign!r}, which {train} has not; leave it out or add samples")


def _class(where: str, label: Any) -> int | str:
    if isinstance(label, str):
        return label
    if isinstance(label, int | float) and not isinstance(label, bool) and 0 <= label < MOST_CLASSES and label % 1 == 0:
        return int(label)
    raise UserError(f"{where} has the label {label!r}; a class is a name or a whole number from 0 on")


def _target(where: str, label: Any) -> float:
    return numbers(where, ["y"], [label])[0]


def _classes(file: Path, labels: list[Any]) -> Classes:
    """Whole numbers are classes already; names are numbered."""
    kinds = {type(label) for label in labels}
    if kinds == {int}:
        y = np.array(labels, dtype=np.int64)
        return Classes(y, int(y.max()) + 1)
    if kinds != {str}:
        raise UserError(f"{file} and the files with it mix names and numbers as labels; use one of the two")
    names = in_order(tuple(set(labels)))
    number = {name: k for k, name in enumerate(names)}
    return Classes(np.array([number[label] for label in labels], dtype=np.int64), len(names), names)
