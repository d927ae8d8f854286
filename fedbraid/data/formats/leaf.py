"""LEAF's JSON: files with a list of `users` and, for each of them, `user_data` with samples `x` and labels `y`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fedbraid.data.formats.streams import read_all
from fedbraid.errors import UserError

MOST = 1 << 30
"""Bytes of JSON in one file. LEAF's own are smaller: it writes fifty FEMNIST writers to a file."""


def user_data(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every user of a file, in the file's order, with what the file holds of it."""
    content = _json(path)
    if not isinstance(content, dict) or not {"users", "user_data"} <= content.keys():
        raise UserError(f"{path} is not LEAF's JSON, which is an object with 'users' and 'user_data'")
    users, held = content["users"], content["user_data"]
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise UserError(f"{path}: 'users' must be a list of names")
    if not isinstance(held, dict):
        raise UserError(f"{path}: 'user_data' must be an object with an entry for every user")
    for user in users:
        if not isinstance(held.get(user), dict):
            raise UserError(f"{path}: user {user!r} is in 'users' and has no object in 'user_data'")
        yield user, held[user]


def samples(path: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Every user of a file with its samples and their labels."""
    for user, held in user_data(path):
        x, y = held.get("x"), held.get("y")
        if not isinstance(x, list) or not isinstance(y, list):
            raise UserError(f"{path}: user {user!r} lacks the lists 'x' and 'y'")
        if len(x) != len(y):
            raise UserError(f"{path}: user {user!r} has {len(x)} samples and {len(y)} labels")
        yield user, x, y


def json_files(folder: Path) -> Sequence[Path]:
    """The JSON files of a folder by name, gzipped or not."""
    return sorted(p for p in folder.glob("*") if p.name.endswith((".json", ".json.gz")))


def _json(path: Path) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise UserError(f"{path} holds {constant}, which is no number")

    try:
        return json.loads(read_all(path, MOST), parse_constant=refuse)
    except RecursionError:
        raise UserError(f"{path} is nested too deeply to be LEAF's JSON") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8, as JSON must be") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
