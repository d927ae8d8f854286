"""The one exception a user meets: a sentence that says what was wrong and what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A user's mistake. The command line prints it as one line and exits with code 2."""


OTHER_WORDS = {
    "learning_rate": "lr",
    "batch_size": "batch",
    "num_rounds": "rounds",
    "global_rounds": "rounds",
    "num_clients": "clients",
    "n_clients": "clients",
    "local_epochs": "epochs",
    "fraction": "rate",
    "weight_decay_rate": "weight_decay",
    "alpha": "beta",
}
"""What other libraries call a setting, and what it is called here."""

MANY = 20
"""Names that are too many to be read where the one that was meant is known."""


def unknown(kind: str, name: str, known: Iterable[str], otherwise: str = "") -> UserError:
    """`no optimizer is called 'sdg'; did you mean 'sgd'? known: …`, and what it might be `otherwise`."""
    names = sorted(known)
    same = [other for other in names if _letters(other) == _letters(name)]  # CIFAR10, Cifar-10
    other = [word for word in (OTHER_WORDS.get(name),) if word in names]
    close = same[:1] or other or get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    listed = "" if close and len(names) > MANY else f"known: {', '.join(names)}"
    rest = "; ".join(part for part in (listed, otherwise) if part)
    return UserError(f"no {kind} is called {name!r}; {hint}{rest}".rstrip())


def _letters(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
