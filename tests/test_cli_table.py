"""Tables of words in terminals of any width."""

import io

import pytest
from rich.console import Console

from fedbraid.cli_table import shared, word_table

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


@pytest.mark.parametrize("width", [12, 20, 31])
def test_nothing_is_cut_where_words_do_not_fit(width):
    letters = "".join(printed(width).split())
    assert "…" not in letters
    assert sorted(letters) == sorted("".join("".join(row) for row in [TITLES, *ROWS]).replace(" ", ""))


@pytest.mark.parametrize(
    ("room", "widths"),
    [(0, [4, 10]), (14, [4, 10]), (16, [6, 10]), (20, [8, 12]), (99, [8, 30])],
)
def test_the_narrowest_column_grows_first(room, widths):
    assert shared(room, least=[4, 10], most=[8, 30]) == widths
