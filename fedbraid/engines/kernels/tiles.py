"""Tile sizes of the Triton programs."""

from __future__ import annotations

PROGRAMS = 528
"""Programs that keep a large GPU busy: four for each of the 132 multiprocessors of an H100 or H200."""


def power(number: int, least: int, most: int) -> int:
    """Return the smallest power of two that is at least `number`, clamped to [least, most]."""
    return min(most, max(least, 1 << (number - 1).bit_length()))


def breadth(depth: int) -> int:
    """Return the padded length of rows of `depth` numbers: tensor cores take sixteen at a time."""
    return -(-depth // 16) * 16


def split_rows(rows: int, block: int, programs: int, busy: int = PROGRAMS) -> tuple[int, int]:
    """Return the number of partial sums over rows, and the rows of each, in whole blocks.

    As many as keep the GPU `busy`, where so many `programs` would sum all rows; parts are then added in a fixed order.
    """
    splits = max(1, min(-(-rows // (4 * block)), busy // programs))
    return splits, -(-rows // (splits * block)) * block
