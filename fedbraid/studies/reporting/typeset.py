"""How wide text is in LaTeX, and a table cut into pieces that fit a page: columns side by side, rows below each other.

Widths are in sizes of the font and heights in lines, so that they hold whatever size a document has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedbraid.report.words import NOTHING

ARTICLES = (9.0, 345.0), (10.0, 360.0), (10.95, 390.0)
"""Of an article at 10, 11 and 12 pt: the size of `\\small` text, and the width of a line."""
LINE = min(line / size for size, line in ARTICLES)
LINES = 38
"""Lines of `\\small` text on a page at 12 pt, which has the fewest."""
GAP = 12.0
"""Points between two columns: two of LaTeX's `\\tabcolsep`."""
WIDEST_NAME = 13.0
"""Names of rows that are longer go on in another line; so do words of columns' names."""
LEAST_HEAD = 6.5
"""A column's name may take so much, though its numbers are narrower."""
FRAME = 3.0
"""Lines that the rules around and within a piece take, and the space above it."""

# Of Computer Modern, a little rounded up.
_WIDTHS = {
    0.30: " !',.:;[]_`il|’‘",
    0.35: " -fj",
    0.42: "()rtIs",
    0.47: "cez",
    0.52: '?"$*/0123456789\\^ago{}~†–',
    0.55: "Jkqvxyµ",
    0.58: "Sbdhnpu",
    0.68: "LFZ",
    0.75: "EPBCTw",
    0.80: "RAHNUVXYD&+=@KOQ<>",
    0.87: "G#%m",
    1.06: "MW—…",
}
_OF_LETTER = {letter: width for width, letters in _WIDTHS.items() for letter in letters}
_OTHERS = 0.85
"""Signs and Greek letters."""


def width(text: str) -> float:
    return sum(_OF_LETTER.get(letter, _OTHERS) for letter in text)


def wrapped(text: str, most: float) -> list[str]:
    """The text in lines of at most that width; words that are longer are broken."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and width(f"{lines[-1]} {word}") <= most:
            lines[-1] += f" {word}"
            continue
        parts = [""]
        for letter in word:
            if parts[-1] and width(parts[-1] + letter) > most:
                parts.append("")
            parts[-1] += letter
        lines += parts
    return lines


@dataclass(frozen=True)
class Group:
    """Lines that stay together: a row's numbers, and the paper's below them."""

    name: tuple[str, ...]  # in lines
    lines: tuple[tuple[str, tuple[str, ...]], ...]  # what each is called below the first, and a cell for each column

    def of(self, columns: Sequence[int]) -> Group:
        """Without the lines below the first that say nothing of these columns."""
        first, *others = self.lines
        told = [line for line in others if any(line[1][k] != NOTHING for k in columns)]
        return Group(self.name, (first, *told))

    @property
    def height(self) -> int:
        return len(self.lines) + len(self.name) - 1


@dataclass(frozen=True)
class Piece:
    """Some columns of some groups."""

    heads: tuple[tuple[str, ...], ...]  # in lines
    columns: tuple[int, ...]
    groups: tuple[Group, ...]

    @property
    def height(self) -> float:
        return FRAME + max(map(len, self.heads)) + sum(group.height for group in self.groups)


def pieces(columns: Sequence[str], groups: Sequence[Group], indent: float) -> list[Piece]:
    """The whole table in blocks of columns, as few as fit a line, and about equally many in each."""
    cells = [[width(cells[k]) for group in groups for _, cells in group.lines] for k in range(len(columns))]
    names = max(
        [width(line) for group in groups for line in group.name]
        + [indent + width(name) for group in groups for name, _ in group.lines],
        default=0.0,
    )
    numbers = [max(found, default=0.0) for found in cells]
    words = [min(max(map(width, name.split(" "))), WIDEST_NAME) for name in columns]
    heads = [wrapped(name, max(numbers[k], words[k], LEAST_HEAD)) for k, name in enumerate(columns)]
    widths = [max([numbers[k], *map(width, head)]) for k, head in enumerate(heads)]
    for blocks in range(1, len(columns) + 1):
        parts = _evenly(len(columns), blocks)
        if all(_fits(names + sum(widths[k] for k in part), len(part)) for part in parts):
            break
    return [
        Piece(tuple(tuple(heads[k]) for k in part), tuple(part), tuple(group.of(part) for group in groups))
        for part in parts
    ]


def _fits(text: float, gaps: int) -> bool:
    return all(text * size + gaps * GAP <= line for size, line in ARTICLES)


def floats(blocks: Sequence[Piece], first: int, others: int) -> list[list[Piece]]:
    """The blocks on pages. `first` and `others` are the lines that captions take there."""
    pages: list[list[Piece]] = [[]]
    left = LINES - float(first)
    for piece in (part for block in blocks for part in _parts(block, LINES - max(first, others))):
        if pages[-1] and piece.height > left:
            pages.append([])
            left = LINES - float(others)
        pages[-1].append(piece)
        left -= piece.height
    return pages


def _parts(block: Piece, room: float) -> list[Piece]:
    """A block that is higher than a page, in as few parts as fit one."""
    for number in range(1, len(block.groups) + 1):
        bounds = _evenly(len(block.groups), number)
        parts = [Piece(block.heads, block.columns, tuple(block.groups[k] for k in part)) for part in bounds]
        if all(part.height <= room for part in parts):
            break
    return parts


def _evenly(number: int, parts: int) -> list[range]:
    bounds = [round(number * k / parts) for k in range(parts + 1)]
    return [range(low, high) for low, high in pairwise(bounds)]
