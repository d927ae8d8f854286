"""Tables of words in terminals of any width."""

import io

import pytest
from rich.console import Console

from fedbraid.cli.terminal_table import PADDING, shared, word_table

TITLES = "name", "hyper-parameters"
ROWS = [("adam", "opt(kind=adam, bias_correction=False)"), ("[bold]", "none")]


def printed(width):
    console = Console(file=io.StringIO(), width=width)
    console.print(word_table(TITLES, ROWS, width))
    return console.file.getvalue()


def test_what_fits_is_a_line():
    assert [line.split(maxsplit=1) for line in printed(80).splitlines()[1:]] == [
        ["adam", "opt(kind=adam, bias_correction=False)".ljust(38)],
        ["[bold]", "none".ljust(38)],
    ]


@pytest.mark.parametrize("width", [33, 40, 46])
def test_words_stay_whole_in_a_narrow_terminal(width):
    lines = printed(width).splitlines()
    assert max(map(len, lines)) <= width
    assert {word for _, text in ROWS for word in text.split()} <= {word for line in lines for word in line.split()}


@pytest.mark.parametrize("width", [12, 20, 29])
def test_a_row_is_a_paragraph_where_columns_do_not_fit(width):
    shown = printed(width)
    assert max(map(len, shown.splitlines())) <= width
    told = [word for name, text in ROWS for word in (name, "hyper-parameters:", text)]
    assert "".join(shown.split()) == "".join(told).replace(" ", "")
    fit = {word for word in " ".join(told).split() if len(word) <= width - PADDING}
    assert fit <= {*shown.split()}


def test_a_value_that_is_not_there_has_no_line():
    console = Console(file=io.StringIO(), width=20)
    console.print(word_table(("name", "not with", "hyper-parameters"), [("adam", "", "none")], 20))
    assert [line.rstrip() for line in console.file.getvalue().splitlines()] == ["adam", "  hyper-parameters:", "  none"]


@pytest.mark.parametrize(
    ("room", "widths"),
    [(0, [4, 10]), (14, [4, 10]), (16, [6, 10]), (20, [8, 12]), (99, [8, 30])],
)
def test_the_narrowest_column_grows_first(room, widths):
    assert shared(room, least=[4, 10], most=[8, 30]) == widths
