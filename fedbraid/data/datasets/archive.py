"""A user's own arrays in a `.npz` archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedbraid.config.registry import whole
from fedbraid.core.random import stream
from fedbraid.core.task import Task
from fedbraid.data.cache import ArrayWriter, decoded
from fedbraid.data.common_options import one_of, own_path, share
from fedbraid.data.dataset import Array, Dataset
from fedbraid.data.datasets.cached import rows_of, split
from fedbraid.data.datasets.leaf_file import MOST_CLASSES
from fedbraid.data.datasets.normal import Normal, chosen, measured
from fedbraid.data.formats.npz import names_in, read_npz
from fedbraid.data.held_out import held_out
from fedbraid.errors import UserError

Arrays = dict[str, Array]
TEXT = (np.int16, np.int32, np.int64)
"""Types of numbers that stand for something else, such as words."""
MOST_WORDS = 1 << 20
"""Beyond that a number hardly stands for a word: networks hold a vector for each."""
CHANNELS = (1, 3, 4)
AS_IT_IS = Normal((0.0,), (1.0,))


def archive(
    path: str = "",
    task: str = "classification",
    test_share: float = 0.2,
    seed: int = 0,
    normalise: str = "channels",
) -> Dataset:
    """Samples `x` with what is to be told of them, `y`, and perhaps their `users`; or `x_train`, `x_test` and so on.

    Images are uint8 [n, height, width] or [n, channels, height, width], the channels first or last. Only they are
    normalised; other numbers are taken as they are. Whole numbers of more than 8 bits are the words of texts, where 0
    is padding. Without test samples of their own, `test_share` of each user's samples (of each class's, where there
    are no users) is held out at random.
    """
    file, part = own_path("npz", "path", path), share("test_share", test_share)
    is_class = one_of("task", task, ("classification", "regression")) == "classification"
    chosen(normalise, Normal((), ()))  # a mistake is told before a long decoding
    options = {"is_class": is_class, "test_share": part, "seed": whole("seed", seed, 0)}
    kept = decoded("npz", [file], options, lambda writer: _decode(writer, file, is_class, part, seed))
    train = split(kept, "train")
    measure = Normal(tuple(kept.facts["mean"]), tuple(kept.facts["std"]))
    normal = chosen(normalise, measure) if _is_image(train.x) else AS_IT_IS
    return Dataset(
        name="npz",
        train=train,
        test=split(kept, "test"),
        classes=kept.facts["classes"],
        task=cast(Task, task),
        mean=normal.mean,
        std=normal.std,
        tokens=tuple(map(str, range(kept.facts["words"]))),
        source=str(file),
    )


def _decode(writer: ArrayWriter, file: Path, is_class: bool, test_share: float, seed: int) -> dict[str, Any]:
    there = names_in(file)
    if {"x_train", "y_train", "x_test", "y_test"} <= set(there):
        train, test = (_checked(file, ending, is_class) for ending in ("_train", "_test"))
    elif {"x", "y"} <= set(there):
        train, test = _halves(file, _checked(file, "", is_class), is_class, test_share, seed)
    else:
        raise UserError(f"{file} must hold x and y, or x_train, y_train, x_test and y_test; it has {', '.join(there)}")
    _check_alike(file, train, test, is_class)
    for part, arrays in (("train", train), ("test", test)):
        for name, values in arrays.items():
            writer.put(f"{part}_{name}", values)
    normal = measured(writer.filled("train_x")) if _is_image(train["x"]) else AS_IT_IS
    return {
        "classes": int(train["y"].max()) + 1 if is_class else 1,
        "words": 1 + max(int(part["x"].max()) for part in (train, test)) if train["x"].dtype in TEXT else 0,
        "mean": normal.mean,
        "std": normal.std,
    }


def _is_image(x: Array) -> bool:
    return x.dtype == np.uint8 and x.ndim == 4


def _halves(file: Path, held: Arrays, is_class: bool, test_share: float, seed: int) -> tuple[Arrays, Arrays]:
    groups = held.get("users", held["y"] if is_class else np.zeros(len(held["y"])))
    rows = rows_of(held_out(groups, test_share, stream(seed, "npz split")), [file])
    train, test = ({name: values[rows[part]] for name, values in held.items()} for part in ("train", "test"))
    return train, test


def _checked(file: Path, ending: str, is_class: bool) -> Arrays:
    """x, y and users of a part, in the types and the order that the rest relies on."""
    held = read_npz(file, [f"{name}{ending}" for name in ("x", "y", "users")])
    x, y, users = samples_of(file, f"x{ending}", held.pop(f"x{ending}")), held[f"y{ending}"], held.get(f"users{ending}")
    each = f"for each of the {len(x):,} samples"
    if y.shape != x.shape[:1] or y.dtype.kind not in ("iu" if is_class else "iuf"):
        raise UserError(f"{file}: y{ending} must be one {'whole' if is_class else 'finite'} number {each}")
    part = {"x": x, "y": _classes(file, f"y{ending}", y) if is_class else _finite(file, f"y{ending}", y)}
    if users is None:
        return part
    if users.shape != y.shape or users.dtype.kind not in "iuU":
        raise UserError(f"{file}: users{ending} must be one whole number or name {each}")
    return part | {"users": users}


def samples_of(file: Path, name: str, x: Array) -> Array:
    if x.ndim < 2 or not x.size:
        raise UserError(f"{file}: {name} must be at least [samples, features], not {list(x.shape)}")
    if x.dtype.kind == "f":
        return _finite(file, name, x)
    if x.dtype != np.uint8 and x.dtype not in TEXT:
        raise UserError(f"{file}: {name} is {x.dtype}; save images as uint8, words as int32, other numbers as float32")
    if x.dtype in TEXT and not 0 <= x.min() <= x.max() < MOST_WORDS:
        raise UserError(f"{file}: {name} holds {x.min()}..{x.max()}; numbers of words lie in 0..{MOST_WORDS - 1}")
    if x.dtype == np.uint8 and x.ndim == 3:
        return x[:, None]
    if x.dtype == np.uint8 and x.ndim == 4 and x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS:
        return x.transpose(0, 3, 1, 2)
    return x


def _finite(file: Path, name: str, values: Array) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is told
        single = values.astype(np.float32, copy=False)
    if not np.isfinite(single).all():
        raise UserError(f"{file}: {name} has values that are not finite, or too large for 32 bits")
    return single


def _classes(file: Path, name: str, y: Array) -> NDArray[np.int64]:
    if not 0 <= y.min() <= y.max() < MOST_CLASSES:  # before the cast, which would wrap the largest
        raise UserError(f"{file}: {name} holds {y.min()}..{y.max()}; classes lie in 0..{MOST_CLASSES - 1}")
    return y.astype(np.int64)


def _check_alike(file: Path, train: Arrays, test: Arrays, is_class: bool) -> None:
    kinds = [(part["x"].dtype.name, *part["x"].shape[1:]) for part in (train, test)]
    if kinds[0] != kinds[1]:
        raise UserError(f"{file}: training samples are {kinds[0]} and test samples {kinds[1]}; they must be alike")
    foreign = np.setdiff1d(test["y"], train["y"])
    if is_class and len(foreign):
        raise UserError(f"{file}: class {foreign[0]} is in the test samples and not in the training samples")
