"""How large the pieces are that programs take at a time."""

from __future__ import annotations

PROGRAMS = 528
"""Programs that keep a large GPU busy."""


def power(number: int, least: int, most: int) -> int:
    """The power of two from `number` on, within limits."""
    return min(most, max(least, 1 << (number - 1).bit_length()))
