"""A recipe's table for LaTeX, to be taken in by \\input; it needs the package booktabs and nothing else."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from fedbraid.report.words import NOTHING, printable
from fedbraid.studies.reporting.account import Account
from fedbraid.studies.reporting.entries import Entry
from fedbraid.studies.reporting.typeset import LINE, WIDEST_NAME, Group, Piece, floats, pieces, wrapped
from fedbraid.studies.reporting.words import MARK, MINUS

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    NOTHING: r"\textendash{}",
    MARK: r"\dag{}",
    "±": r"$\pm$",
    MINUS: "$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "→": r"$\rightarrow$",
    "∞": r"$\infty$",
    "√": r"$\surd$",
    "…": r"\ldots{}",
    "’": "'",
    "‘": "`",
    "“": "``",
    "”": "''",
    "—": r"\textemdash{}",
    "µ": r"$\mu$",
}
"""Letters that LaTeX would obey, and those that it has other names for."""


def escaped(raw: str) -> str:
    """Typeset as it is, by any LaTeX, with no package for letters.

    >>> escaped("50 % of β_1 & more")
    '50 \\\\% of $\\\\beta$\\\\_1 \\\\& more'
    """
    letters = "".join(map(_letter, unicodedata.normalize("NFC", printable(raw))))
    return letters.replace("--", "-{}-")  # two hyphens are two, as in an option of a command


def to_latex(told: Account, label: str = "") -> str:
    """A floating table: a line for our numbers, and two more for the paper's and the difference where there are some.

    Columns that do not fit side by side go on below, and what does not fit a page in another table that has the same
    number. It is labelled by the recipe's name, or by `label`: tables that were run otherwise may stand in one text.
    """
    rows, columns = _with_numbers(told)
    caption, again = _caption(told), f"{told.title}, continued."
    if len(rows) * len(columns) < len(told.entries):
        caption += " Rows and columns without a number are left out."
    blocks = pieces(columns, [_group(told, row, columns) for row in rows], INDENT)
    pages = floats(blocks, *(_caption_lines(words) for words in (caption, again)))
    name = rf"\label{{tab:{_label(label or told.recipe.name)}}}"
    heads = [[rf"\caption{{{escaped(caption)}}}", name]]
    heads += [[r"\addtocounter{table}{-1}", rf"\caption{{{escaped(again)}}}"]] * (len(pages) - 1)
    fit = "it fits" if len(pages) == 1 else f"its {len(pages)} floats fit"
    parts = [rf"% needs \usepackage{{booktabs}}; {fit} the page of an article at 10, 11 or 12 pt"]
    for head, page in zip(heads, pages, strict=True):
        body = "\n\n\\medskip\n".join(map(_tabular, page))
        parts += [r"\begin{table}", r"\centering\small", *head, r"\medskip", "", body, r"\end{table}"]
    return "\n".join([*parts, ""])


INDENT = 1.1
"""Sizes of the font before what a line below a row's is called."""


def _with_numbers(told: Account) -> tuple[list[str], list[str]]:
    """The rows and the columns that have a number, ours or the paper's; all of them where nothing has one."""
    there = [place for place, entry in told.entries.items() if entry.values or entry.without or entry.paper]
    rows = [row.name for row in told.recipe.rows if any(place[0] == row.name for place in there or told.entries)]
    return rows, [name for name in told.columns if any(place[1] == name for place in there or told.entries)]


def _group(told: Account, row: str, columns: Sequence[str]) -> Group:
    mine = [told.entries[row, column] for column in columns]
    lines = [("", tuple(map(told.ours, mine)))]
    if any(entry.paper for entry in mine):
        lines.append(("paper", tuple(map(told.paper, mine))))
    if any(entry.difference is not None for entry in mine):
        lines.append(("difference", tuple(map(told.difference, mine))))
    return Group(tuple(wrapped(row, WIDEST_NAME)), tuple(lines))


def _caption_lines(words: str) -> int:
    return 2 + len(wrapped(f"Table 10: {words}", LINE))  # the space around it counts as two


def _tabular(piece: Piece) -> str:
    lines = [
        rf"\begin{{tabular}}{{@{{}}l{'r' * len(piece.columns)}@{{}}}}",
        r"\toprule",
        _line("{}", [_stacked(head, "br") for head in piece.heads]),
        r"\midrule",
    ]
    for group in piece.groups:
        for below, cells in group.lines:
            name = rf"\quad {escaped(below)}" if below else _stacked(group.name, "tl")
            lines.append(_line(name, [escaped(cells[k]) for k in piece.columns]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _stacked(lines: Sequence[str], how: str) -> str:
    """A cell of several lines, whose top (t) or bottom (b) line is that of the table, to the left (l) or right (r)."""
    # The groups keep a line that begins with a bracket from being read as an option of the line break before it.
    typeset = [f"{{}}{escaped(line)}" for line in lines]
    if len(lines) == 1:
        return typeset[0]
    return rf"\begin{{tabular}}[{how[0]}]{{@{{}}{how[1]}@{{}}}}" + r" \\ ".join(typeset) + r"\end{tabular}"


def _caption(told: Account) -> str:
    """What is shown, what the numbers are, and how many are missing; the rest is told in the report."""
    variant, some = told.results.variant, told.entries.values()
    parts = [f"{told.title}."]
    if variant:
        parts.append(f"Run with {variant}, which is not the paper's setting.")
    parts.append(_numbers(told))
    if any(entry.difference is not None for entry in some):
        parts.append(
            f"Differences are ours minus the paper's, {MARK} where larger than both standard deviations together."
        )
    return " ".join([*parts, *_missing(told)])


def _numbers(told: Account) -> str:
    entries = [entry for entry in told.entries.values() if not _left_out(told, entry)]
    kinds = list(dict.fromkeys(f"{e.metric.label}{' in %' if e.scale == 100.0 else ''}" for e in entries))
    words = "; ".join(kinds) if len(kinds) <= MOST_KINDS else "numbers of several kinds, as rows and columns say"
    seeds = len(told.results.seeds)
    spread = f"mean ± sample standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return f"{words[:1].upper()}{words[1:]}; {spread}."


MOST_KINDS = 3
"""Metrics that a caption names."""


def _missing(told: Account) -> list[str]:
    """How many cells have no number that should have one, and which data would be needed, wherever it is kept."""
    wanted = {place: entry for place, entry in told.entries.items() if not _left_out(told, entry)}
    absent = [place for place, entry in wanted.items() if not entry.values]
    configs = [told.results.cells[place].settings for place in absent if wanted[place].skipped]
    data = dict.fromkeys(config.data.name for config in configs if config)
    if not absent:
        return []
    some = f"{len(configs)} of them " if len(configs) < len(absent) else ""
    because = f", {some}for lack of data ({', '.join(data)})" if data else ""
    return [f"{len(absent)} of {len(wanted)} cells {'is' if len(absent) == 1 else 'are'} missing{because}."]


def _left_out(told: Account, entry: Entry) -> bool:
    """Whether the recipe itself says that there is no such cell."""
    return entry.skipped in {override.skip for override in told.recipe.overrides if override.skip}


def _line(name: str, cells: Sequence[str]) -> str:
    return " & ".join([name, *cells]) + r" \\"


def _letter(letter: str) -> str:
    if letter in SPECIAL:
        return SPECIAL[letter]
    if letter.isascii():
        return letter
    kind, _, plain = unicodedata.decomposition(letter).partition(" ")
    if kind in ("<sub>", "<super>") and chr(int(plain, 16)).isascii():
        return f"${'_' if kind == '<sub>' else '^'}{{{chr(int(plain, 16))}}}$"
    name = unicodedata.name(letter, "")
    if name.startswith("LATIN "):
        return letter
    kind, _, greek = name.partition(" LETTER ")
    if kind in ("GREEK SMALL", "GREEK CAPITAL") and " " not in greek:
        greek = {"LAMDA": "LAMBDA"}.get(greek, greek)
        return _greek(greek, capital=kind == "GREEK CAPITAL")
    return "?"


def _greek(name: str, *, capital: bool) -> str:
    if name == "OMICRON":
        return "O" if capital else "o"
    if not capital:
        return f"$\\{name.lower()}$"
    known = {"GAMMA", "DELTA", "THETA", "LAMBDA", "XI", "PI", "SIGMA", "UPSILON", "PHI", "PSI", "OMEGA"}
    if name in known:
        return f"$\\{name.title()}$"
    looks = {"EPSILON": "E", "ETA": "H", "KAPPA": "K", "RHO": "P", "CHI": "X"}
    return looks.get(name, name[0])


def _label(name: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)
