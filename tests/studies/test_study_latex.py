"""Tables for LaTeX fit the page of an article, whatever they have."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_study import COURSES, recipe, results

from fedbraid.report.latex import NAME, PAGE, floats, pieces
from fedbraid.report.tables import Detail, TableCell, TableColumn, TableData
from fedbraid.studies.recipe import Line, Recipe
from fedbraid.studies.report import to_latex
from fedbraid.studies.study_summary import summarise_study
from fedbraid.studies.table_results import Results

LONG = "FedAvg with a momentum of 0.9 at the server, and 5 local epochs of every one of the clients"


def large(rows: int, columns: int) -> tuple[Recipe, Results]:
    """Every cell has our numbers and the paper's."""
    across = tuple(replace(recipe().columns[0], name=f"CIFAR-10, split number {k}") for k in range(columns))
    down = tuple(Line(f"{LONG} {k}" if k % 5 == 0 else f"row {k}", {"method": "fedavg"}) for k in range(rows))
    numbers = {row.name: {column.name: (60.0, 0.5) for column in across} for row in down}
    made = recipe(rows=down, columns=across, overrides=(), claims=(), numbers=numbers)
    one = COURSES["FedAvg", "β = 0.1"]
    return made, results(made, {(row.name, column.name): one for row in down for column in across})


def drawn(heads: Sequence[str], rows: Sequence[tuple[TableCell, ...]]) -> TableData:
    return TableData((TableColumn("row", ""), *(TableColumn(head, head) for head in heads)), tuple(rows))


def cells(texts: Sequence[str], **details: str) -> tuple[TableCell, ...]:
    """A row of our numbers; of the last one there is a detail."""
    found = [TableCell(text) for text in texts]
    last = replace(found[-1], details=tuple(Detail(name, text) for name, text in details.items()))
    return (TableCell("FedAvg"), *found[:-1], last)


def test_columns_that_do_not_fit_side_by_side_are_put_below_in_equal_numbers() -> None:
    found = pieces(drawn([f"column {k}" for k in range(8)], [cells(["60.27 ± 0.31"] * 8)]))
    assert [piece.columns for piece in found] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [piece.columns for piece in pieces(drawn("ab", [cells(["60.27 ± 0.31"] * 2)]))] == [(0, 1)]


def test_lines_that_say_nothing_of_a_blocks_columns_are_left_out() -> None:
    one, other = pieces(drawn([f"column {k}" for k in range(8)], [cells(["60.27 ± 0.31"] * 8, paper="70.00")]))
    assert [len(piece.groups[0].lines) for piece in (one, other)] == [1, 2]


def test_words_of_names_stay_whole() -> None:
    (found,) = pieces(drawn(["SHAKESPEARE (660,10)"], [(TableCell(LONG), TableCell("1"))]))
    assert found.heads == (("SHAKESPEARE", "(660,10)"),)
    assert " ".join(found.groups[0].name) == LONG and max(map(len, found.groups[0].name)) <= NAME


def test_rows_that_do_not_fit_a_page_go_on_in_another() -> None:
    pages = floats(pieces(drawn("a", [(TableCell(f"row {k}"), TableCell("1")) for k in range(56)])), 5, 3)
    assert [len(piece.groups) for page in pages for piece in page] == [28, 28]
    assert all(sum(piece.height for piece in page) <= PAGE - 3 for page in pages)


def test_a_table_without_numbers_in_some_rows_and_columns_leaves_them_out() -> None:
    made = recipe(numbers={})
    text = to_latex(summarise_study(made, results(made, {("FedAvg", "β = 0.1"): COURSES["FedAvg", "β = 0.1"]})))
    assert "Disco" not in text.split(r"\toprule")[1] and "0.5 " not in text.split(r"\toprule")[1].split(r"\midrule")[0]
    assert "Rows and columns without a number are left out." in text
    empty = to_latex(summarise_study(made, results(made, {})))
    assert empty.count("missing") == 4 + 1, "in each cell, and in the caption"


def test_continued_tables_have_one_number_and_one_label() -> None:
    text = to_latex(summarise_study(*large(30, 9)))
    several = text.count(r"\begin{table}")
    assert several > 1
    assert text.count(r"\addtocounter{table}{-1}") == text.count("continued.") == several - 1
    assert text.count(r"\label{") == 1
    assert text.startswith(rf"% needs \usepackage{{booktabs,graphicx}}; its {several} floats fit")


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex here")
@pytest.mark.parametrize("size", ["10pt", "12pt"])
def test_latex_has_nothing_to_say_against_a_large_table(size: str, tmp_path: Path) -> None:
    (tmp_path / "table.tex").write_text(to_latex(summarise_study(*large(14, 7))), encoding="utf-8")
    text = (
        rf"\documentclass[{size}]{{article}}"
        r"\usepackage{booktabs,graphicx}\begin{document}\input{table}\end{document}"
    )
    (tmp_path / "main.tex").write_text(text, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
    log = (tmp_path / "main.log").read_text(encoding="latin-1")
    assert done.returncode == 0, log[-2000:]
    assert not re.findall(r"Overfull.*|Float too large.*", log)
