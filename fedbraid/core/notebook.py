"""Short representations of objects, for a prompt and for a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

MOST_SHOWN = 12
"""Entries of a list that a representation shows."""


def short_repr(name: str, /, *first: Any, **facts: Any) -> str:
    """Return a line such as `Dataset('digits', train=1437, test=360)`."""
    parts = [*map(repr, first), *(f"{key}={value!r}" for key, value in facts.items())]
    return f"{name}({', '.join(parts)})"


def facts_table(title: str, facts: Mapping[str, Any]) -> str:
    """Return an HTML table with a row for each fact. All text is escaped: names and labels come from users."""
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(key)}</th>'
        f'<td style="text-align:left">{escape(str(value))}</td></tr>'
        for key, value in facts.items()
    )
    return f"<table><caption>{escape(title)}</caption><tbody>{rows}</tbody></table>"


def some(values: list[str]) -> str:
    """Return the first few of many texts, separated by commas, and how many more there are."""
    shown = values[:MOST_SHOWN]
    more = [f"… ({len(values) - len(shown)} more)"] if len(values) > len(shown) else []
    return ", ".join([*shown, *more])
