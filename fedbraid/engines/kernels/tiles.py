"""How large the pieces are that programs take at a time."""

from __future__ import annotations

PROGRAMS = 528
"""Programs that keep a large GPU busy."""


def power(number: int, least: int, most: int) -> int:
    """The power of two from `number` on, within limits."""
    return min(most, max(least, 1 << (number - 1).bit_length()))


def breadth(depth: int) -> int:
    """Of rows of `depth` numbers, with zeros after them: tensor cores take sixteen at a time."""
    return -(-depth // 16) * 16


def split_rows(rows: int, block: int, programs: int, busy: int = PROGRAMS) -> tuple[int, int]:
    """In how many parts a sum over rows is taken, and how long each is, in whole blocks.

    As many as keep the GPU `busy`, where so many `programs` would sum all rows; parts are then added in a fixed order.
    """
    splits = max(1, min(-(-rows // (4 * block)), busy // programs))
    return splits, -(-rows // (splits * block)) * block
