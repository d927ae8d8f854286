"""The one exception a user meets: a sentence that says what was wrong and what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A user's mistake. The command line prints it as one line and exits with code 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """`no method is called 'disko'; did you mean 'disco'? known: …`"""
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UserError(f"no {kind} is called {name!r}; {hint}known: {', '.join(names)}")
