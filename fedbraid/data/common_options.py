"""Options that several data sets take, checked alike."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from fedbraid.config.registry import positive
from fedbraid.errors import UserError


def share(name: str, value: object) -> float:
    """A share of the samples that leaves some on either side."""
    number = positive(name, value)
    if number >= 1:
        raise UserError(f"{name} must be a number between 0 and 1, such as 0.2, not {value!r}")
    return number


def true_or_false(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise UserError(f"{name} must be true or false, not {value!r}")


def one_of(name: str, value: object, known: Collection[str]) -> str:
    if isinstance(value, str) and value in known:
        return value
    raise UserError(f"{name} must be {' or '.join(map(repr, known))}, not {value!r}")


def own_path(dataset: str, name: str, value: object) -> Path:
    """A file or folder of the user's own."""
    if not isinstance(value, str | Path) or not str(value):
        raise UserError(f"data set {dataset!r} needs the option {name}: where the file or folder is")
    return present(name, value)


def present(name: str, value: str | Path) -> Path:
    """Return the path that `value` names; one that does not exist raises `UserError`. ~ is the user's home."""
    path = Path(os.path.expanduser(value))
    if not os.path.exists(path):  # unlike Path's, it takes names that no file can have
        raise UserError(f"{name} names {path}, which is not there")
    return path
