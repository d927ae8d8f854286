r"""Tables for LaTeX, to be taken in by \input; they need the packages booktabs and graphicx.

Nothing here knows how wide LaTeX sets a text. Columns and rows are split by numbers of characters and of lines, which
is right for most tables; what is wider all the same, LaTeX scales to the width of the line.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap

from fedbraid.report.tables import TableData, detail_rows
from fedbraid.report.words import NOTHING, printable

LINE = 68
r"""Characters in a line of `\small` text, in an article at 10 to 12 pt; the space between columns counts."""
PAGE = 38
r"""Lines of `\small` text on a page at 12 pt, which has the fewest."""
NAME, HEAD = 26, 10
"""Characters after which names of rows and of columns go on in another line; of columns, if their numbers are short."""
GAP = 2
"""Characters that the space between two columns takes."""
FRAME = 3
"""Lines that the rules around and within a piece take, and the space above it."""

_TEXT = ("backslash", "asciitilde", "asciicircum", "less", "greater", "bar", "endash", "emdash")
_MATHS = ("pm", "times", "cdot", "leq", "geq", "approx", "rightarrow", "infty", "surd", "mu")
SIGNS = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"\\text{name}{{}}" for sign, name in zip("\\~^<>|–—", _TEXT, strict=True)},
    **{sign: f"$\\{name}$" for sign, name in zip("±×·≤≥≈→∞√µ", _MATHS, strict=True)},
    **dict(zip('−†…"“”‘’', ("$-$", "\\dag{}", "\\ldots{}", "''", "``", "''", "`", "'"), strict=True)),
}
"""Characters that LaTeX would obey, and those that it has other names for."""
CAPITALS = {"GAMMA", "DELTA", "THETA", "LAMBDA", "XI", "PI", "SIGMA", "UPSILON", "PHI", "PSI", "OMEGA"}
LIKE_LATIN = {"EPSILON": "E", "ETA": "H", "KAPPA": "K", "RHO": "P", "CHI": "X"}
"""Greek capitals that LaTeX has no command for, where they do not look like the first letter of their names."""


@dataclass(frozen=True)
class Group:
    """Lines that stay together: a row, and its details below it."""

    name: tuple[str, ...]  # in lines
    lines: tuple[tuple[str, tuple[str, ...]], ...]  # what each is called below the first, and a cell for each column

    def of(self, columns: Sequence[int]) -> Group:
        """Leave out the lines below the first that say nothing of these columns."""
        first, *others = self.lines
        return Group(self.name, (first, *(line for line in others if any(line[1][k] != NOTHING for k in columns))))

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
    def height(self) -> int:
        return FRAME + max(map(len, self.heads)) + sum(group.height for group in self.groups)


def to_latex(table: TableData, caption: str, label: str, continued: str) -> str:
    r"""Return the table as one float or several, which share a number and the label `tab:LABEL`.

    Columns that do not fit side by side go on below, and what does not fit a page in another float, whose caption is
    `continued`.
    """
    pages = floats(pieces(table), *(2 + len(wrap(f"Table 10: {words}", LINE)) for words in (caption, continued)))
    head = [[rf"\caption{{{escaped(caption)}}}", rf"\label{{tab:{_label(label)}}}"]]
    head += [[r"\addtocounter{table}{-1}", rf"\caption{{{escaped(continued)}}}"]] * (len(pages) - 1)
    fit = "it fits" if len(pages) == 1 else f"its {len(pages)} floats fit"
    parts = [rf"% needs \usepackage{{booktabs,graphicx}}; {fit} the page of an article at 10, 11 or 12 pt"]
    for lines, page in zip(head, pages, strict=True):
        body = "\n\n\\medskip\n".join(map(_tabular, page))
        parts += [r"\begin{table}", r"\centering\small", *lines, r"\medskip", "", body, r"\end{table}"]
    return "\n".join([*parts, ""])


def pieces(table: TableData) -> list[Piece]:
    """Split the table into as few blocks of columns as fit a line, with about equally many columns in each."""
    groups = [
        Group(
            tuple(wrap(row[0].text, NAME)) or ("",),
            (("", tuple(cell.text for cell in row[1:])), *((name, tuple(texts)) for name, texts in detail_rows(row))),
        )
        for row in table.rows
    ]
    names = max(len(line) for group in groups for line in (*group.name, *(f"  {name}" for name, _ in group.lines)))
    heads, widths = [], []
    for k, column in enumerate(table.columns[1:]):
        numbers = max(len(cells[k]) for group in groups for _, cells in group.lines)
        word = max((len(word) for word in column.title.split()), default=1)
        heads.append(tuple(wrap(column.title, max(numbers, HEAD, min(word, NAME)))) or ("",))
        widths.append(max(numbers, *map(len, heads[k])) + GAP)
    for blocks in range(1, len(heads) + 1):
        parts = _evenly(len(heads), blocks)
        if all(names + sum(widths[k] for k in part) <= LINE for part in parts):
            break
    return [Piece(tuple(heads[k] for k in part), tuple(part), tuple(g.of(part) for g in groups)) for part in parts]


def floats(blocks: Sequence[Piece], first: int, others: int) -> list[list[Piece]]:
    """Put the blocks on pages. `first` and `others` are the lines that captions take there."""
    pages: list[list[Piece]] = [[]]
    left = PAGE - first
    for piece in (part for block in blocks for part in _parts(block, PAGE - max(first, others))):
        if pages[-1] and piece.height > left:
            pages.append([])
            left = PAGE - others
        pages[-1].append(piece)
        left -= piece.height
    return pages


def _parts(block: Piece, room: int) -> list[Piece]:
    """Split a block that is higher than a page into as few parts as fit one."""
    for number in range(1, len(block.groups) + 1):
        bounds = _evenly(len(block.groups), number)
        parts = [Piece(block.heads, block.columns, tuple(block.groups[k] for k in part)) for part in bounds]
        if all(part.height <= room for part in parts):
            break
    return parts


def _evenly(number: int, parts: int) -> list[range]:
    bounds = [round(number * k / parts) for k in range(parts + 1)]
    return [range(low, high) for low, high in pairwise(bounds)]


def _tabular(piece: Piece) -> str:
    lines = [
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}l{'r' * len(piece.columns)}@{{}}}}",
        r"\toprule",
        _line("{}", [_stacked(head, "br") for head in piece.heads]),
        r"\midrule",
    ]
    for group in piece.groups:
        for below, cells in group.lines:
            name = rf"\quad {escaped(below)}" if below else _stacked(group.name, "tl")
            lines.append(_line(name, [escaped(cells[k]) for k in piece.columns]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}"])


def _line(name: str, cells: Sequence[str]) -> str:
    return " & ".join([name, *cells]) + r" \\"


def _stacked(lines: Sequence[str], how: str) -> str:
    """A cell of several lines, whose top (t) or bottom (b) line is that of the table, to the left (l) or right (r)."""
    # The groups keep a line that begins with a bracket from being read as an option of the line break before it.
    typeset = [f"{{}}{escaped(line)}" for line in lines]
    if len(lines) == 1:
        return typeset[0]
    return rf"\begin{{tabular}}[{how[0]}]{{@{{}}{how[1]}@{{}}}}" + r" \\ ".join(typeset) + r"\end{tabular}"


def escaped(raw: str) -> str:
    """Return LaTeX that typesets the text as it is, with no package for characters.

    >>> escaped("50 % of β_1 & more")
    '50 \\\\% of $\\\\beta$\\\\_1 \\\\& more'
    """
    typeset = "".join(map(_character, unicodedata.normalize("NFC", printable(raw))))
    return typeset.replace("--", "-{}-")  # two hyphens are two, as in an option of a command


def _character(character: str) -> str:
    if character in SIGNS or character.isascii():
        return SIGNS.get(character, character)
    kind, _, plain = unicodedata.decomposition(character).partition(" ")
    if kind in ("<sub>", "<super>") and chr(int(plain, 16)).isascii():
        return f"${'_' if kind == '<sub>' else '^'}{{{chr(int(plain, 16))}}}$"
    name = unicodedata.name(character, "")
    if name.startswith("LATIN "):
        return character
    kind, _, greek = name.replace("LAMDA", "LAMBDA").partition(" LETTER ")
    if kind == "GREEK SMALL" and " " not in greek:
        return "o" if greek == "OMICRON" else f"$\\{greek.lower()}$"
    if kind == "GREEK CAPITAL" and " " not in greek:
        return f"$\\{greek.title()}$" if greek in CAPITALS else LIKE_LATIN.get(greek, greek[0])
    return "?"


def _label(name: str) -> str:
    return "".join(character if character.isascii() and character.isalnum() else "-" for character in name)
