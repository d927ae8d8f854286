"""Classes from the labels that files hold."""

from __future__ import annotations

from collections.abc import Sequence


def in_order(labels: Sequence[str]) -> tuple[str, ...]:
    """Distinct labels in the order of their classes: by number where all are whole numbers, else by the alphabet.

    >>> in_order(["10", "9", "-1"]), in_order(["10", "9", "none"])
    (('-1', '9', '10'), ('10', '9', 'none'))
    """
    try:
        return tuple(sorted(labels, key=int))
    except ValueError:
        return tuple(sorted(labels))
