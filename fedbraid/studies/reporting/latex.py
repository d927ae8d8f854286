"""A recipe's table for LaTeX, to be taken in by \\input; it needs the package booktabs and nothing else."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from fedbraid.report.words import NOTHING, printable
from fedbraid.studies.reporting.account import Account
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


def to_latex(told: Account) -> str:
    """A floating table: a line for our numbers, and two more where the paper has some."""
    body: list[str] = []
    for row in told.recipe.rows:
        mine = told.row(row)
        body.append(_line(row.name, [told.ours(entry) for entry in mine]))
        if any(entry.paper for entry in mine):
            body.append(_line("paper", [told.paper(entry) for entry in mine], indent=True))
            body.append(_line("difference", [told.difference(entry) for entry in mine], indent=True))
    caption = escaped(" ".join([f"{told.title}.", *map(_sentence, [*told.warnings, *told.notes])]))
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering\small",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{_label(told.recipe.name)}}}",
            rf"\begin{{tabular}}{{l{'r' * len(told.columns)}}}",
            r"\toprule",
            _line("", told.columns),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _line(name: str, cells: Sequence[str], *, indent: bool = False) -> str:
    # The group keeps a cell that begins with a bracket from being read as an option of the line break before it.
    begin = rf"\quad {escaped(name)}" if indent else f"{{}}{escaped(name)}"
    return " & ".join([begin, *map(escaped, cells)]) + r" \\"


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


def _sentence(note: str) -> str:
    return note[:1].upper() + note[1:].rstrip(".") + "."
