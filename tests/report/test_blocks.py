from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from rich.text import Text

from fedbraid.report.blocks import MARKS, bar, half_blocks, heat, smaller, stacked

COUNTS = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 70)), elements=st.integers(0, 5000))


def colours(line: Text) -> list[tuple[str, str, str]]:
    """Character, foreground and background of each span."""
    return [
        (line.plain[span.start : span.end], span.style.color.name, span.style.bgcolor.name)  # type: ignore[union-attr]
        for span in line.spans
    ]


@given(COUNTS)
def test_a_digit_is_the_count_in_ninths_of_the_largest(counts: np.ndarray) -> None:
    lines, size = heat(counts, room=200)
    assert size == 1
    largest = counts.max()
    for line, row in zip(lines, counts, strict=True):
        digits = line.plain.replace(" ", "")
        assert len(digits) == len(row)
        for digit, count in zip(digits, row, strict=True):
            if count:
                assert (int(digit) - 1) * largest < 9 * count <= int(digit) * largest * (1 + 1e-12)
            else:
                assert digit == "·"


def test_neighbours_share_a_digit_where_there_is_no_room() -> None:
    (line,), size = heat(np.array([[1.0, 2, 0, 0, 9, 0, 4]]), room=4)
    assert size == 2
    assert line.plain == "3·94"


@given(COUNTS, st.integers(1, 90))
def test_bars_are_as_long_as_the_shares(counts: np.ndarray, width: int) -> None:
    lines, size = stacked(counts, width)
    for line, row in zip(lines, counts, strict=True):
        assert len(line) == (width if row.sum() else 0)
        assert list(line.plain) == sorted(line.plain, key=MARKS.index)
        for group, mark in enumerate(MARKS[: -(-len(row) // size)]):
            share = row[group * size : (group + 1) * size].sum() / max(row.sum(), 1)
            assert abs(line.plain.count(mark) - share * width) < 1


def test_two_pixels_to_a_character() -> None:
    image = np.array([[[1, 0, 0], [0, 1, 0]], [[0, 0, 1], [1, 1, 1]], [[0.5, 0.5, 0.5]] * 2])
    (line,) = half_blocks(image)
    assert colours(line) == [("▀", "#ff0000", "#0000ff"), ("▀", "#00ff00", "#ffffff")]


def test_smaller_images_keep_the_mean_of_every_square() -> None:
    image = np.arange(5 * 4 * 3, dtype=np.float64).reshape(5, 4, 3)
    small = smaller(image, 3)
    assert small.shape == (2, 2, 3)
    assert small[1, 0].tolist() == image[2:4, 0:2].mean(axis=(0, 1)).tolist()
    assert np.array_equal(smaller(image, 5), image)


@pytest.mark.parametrize(("value", "drawn"), [(0, ""), (1e-9, "▏"), (0.5, "██"), (0.53, "██▏"), (1, "████")], ids=str)
def test_a_bar_in_eighths(value: float, drawn: str) -> None:
    assert bar(value, 1, 4) == drawn
