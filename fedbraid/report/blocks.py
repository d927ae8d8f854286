"""Pictures made of characters, for a terminal: in colour where it has colours, readable where it has none."""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
from numpy.typing import NDArray
from rich.color import Color
from rich.style import Style
from rich.text import Text

from fedbraid.report.series import Floats, grouped
from fedbraid.report.style import CLASS_COLOURS, LIGHT

MARKS = digits + ascii_lowercase + ascii_uppercase
"""The mark of each class, in one character."""

NOTHING = "·"


def bar(value: float, largest: float, width: int) -> str:
    """A bar in eighths of a character; anything above nothing can be seen.

    >>> bar(3, 4, 2)
    '█▌'
    """
    eighths = max(round(8 * width * value / largest), 1) if value > 0 else 0
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def half_blocks(image: Floats) -> list[Text]:
    """An image [height, width, 3] of values between 0 and 1: two pixels in a character, one above the other."""
    pairs = zip(image[0::2], image[1::2], strict=False)  # a last odd row is cut
    return [Text.assemble(*[_two(*pixels) for pixels in zip(*pair, strict=True)]) for pair in pairs]


def smaller(image: Floats, most: int) -> Floats:
    """The image with at most so many pixels a side, each the mean of a square of them; a rest at the edge is cut."""
    step = -(-max(image.shape[:2]) // most)
    height, width = image.shape[0] // step, image.shape[1] // step
    squares = image[: height * step, : width * step].reshape(height, step, width, step, -1)
    mean: Floats = squares.mean(axis=(1, 3))
    return mean


def heat(counts: Floats, room: int) -> tuple[list[Text], int]:
    """One line for each client: a digit for each class, or group of neighbours, as many as there is room for.

    9 is the largest count, and the digits stand for ninths of it, rounded up. Also returns the size of a group.
    """
    cells, size = grouped(counts, room, axis=1)
    wide = 2 * cells.shape[1] <= room
    levels = cells / max(cells.max(), 1)
    return [Text.assemble(*[_cell(level, wide) for level in row]) for row in levels], size


def stacked(counts: Floats, width: int) -> tuple[list[Text], int]:
    """One bar for each client, its samples' classes (or groups of neighbours) in turn, each by its mark and colour."""
    parts, size = grouped(counts, len(CLASS_COLOURS), axis=1)
    lines = []
    for row in parts:
        lengths = _lengths(row, width)
        lines.append(Text.assemble(*[(MARKS[k] * n, class_style(k)) for k, n in enumerate(lengths.tolist()) if n]))
    return lines, size


def class_style(group: int) -> Style:
    colour = Color.parse(CLASS_COLOURS[group])
    return Style(color="black" if sum(colour.get_truecolor()) > 330 else "white", bgcolor=colour)


def _cell(level: float, wide: bool) -> tuple[str, Style]:
    """A digit on the ramp. None has its paper too: on a dark terminal, few must not stand out more than none."""
    digit = str(int(np.ceil(9 * level))) if level else NOTHING
    style = Style(color=LIGHT.paper if level > 0.6 else LIGHT.ink, bgcolor=_on_ramp(level))
    return f"{digit} " if wide else digit, style


def _lengths(row: Floats, width: int) -> NDArray[np.int64]:
    """Return whole characters in proportion to the row, `width` in all: the largest remainders are rounded up."""
    if not row.sum():
        return np.zeros(len(row), dtype=np.int64)
    exact = row / row.sum() * width
    lengths: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    missing = width - int(lengths.sum())
    lengths[np.argsort(lengths - exact, kind="stable")[:missing]] += 1
    return lengths


def _on_ramp(level: float) -> str:
    """The colour of a level between 0 and 1, as pictures on light paper have it."""
    stops = np.array([[int(colour[k : k + 2], 16) for k in (1, 3, 5)] for colour in LIGHT.ramp])
    place = np.linspace(0, 1, len(stops))
    return "#" + "".join(f"{round(np.interp(level, place, part)):02x}" for part in stops.T)


def _two(upper: Floats, lower: Floats) -> tuple[str, Style]:
    above, below = (Color.from_rgb(*(255 * pixel).round().tolist()) for pixel in (upper, lower))
    return "▀", Style(color=above, bgcolor=below)
