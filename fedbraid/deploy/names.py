"""Names of clients: words that are safe as folders and in a line of a log."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedbraid.errors import UserError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_name(name: object) -> bool:
    return isinstance(name, str) and bool(NAME.fullmatch(name))


def check_name(name: str) -> str:
    if not is_name(name):
        raise UserError(f"a client's name has messages, digits, dots, dashes and underscores, at most 64; not {name!r}")
    return name


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UserError(f"two clients are called {twice}")
    return tuple(map(check_name, names))
