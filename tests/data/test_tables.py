"""Text files, CSV rows and numbers in cells: what is read, and the sentence about what cannot be."""

import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.data.formats.columns import open_table
from fedbraid.data.formats.csv_tables import LARGEST, numbers, rows
from fedbraid.data.formats.streams import lines, opened, read_all
from fedbraid.errors import UserError


@pytest.fixture
def file(tmp_path):
    def write(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refused(sentence):
    """One sentence, in one line, that says what is expected of it."""
    return pytest.raises(UserError, match=rf"\A[^\n]*{sentence}[^\n]*\Z")


def test_rows_know_their_lines(file):
    path = file('a,b\n\n"1, and","two\nlines"\n"say ""hi""",é\n')
    assert list(rows(path)) == [(1, ["a", "b"]), (4, ["1, and", "two\nlines"]), (5, ['say "hi"', "é"])]


def test_packed_files_read_like_plain_ones_whatever_they_are_called(file):
    plain = "a,b\n1,2\n"
    assert list(rows(file(gzip.compress(plain.encode()), "packed.csv"))) == list(rows(file(plain)))


def test_a_byte_order_mark_is_no_part_of_the_first_name(file):
    assert open_table(file(b"\xef\xbb\xbfa,b\n1,2\n")).columns == ("a", "b")


def test_old_files_are_read_in_their_encoding(file):
    path = file("caf\xe9".encode("latin-1"))
    assert list(lines(path, "latin-1")) == ["café"]
    with refused(r"table.csv, line 1 has the byte 0xe9, which is not utf-8; save it anew"):
        list(lines(path))


@pytest.mark.parametrize("cut", [1, 9, 40])
def test_cut_off_gzip_files_are_refused(file, cut):
    packed = gzip.compress(b"".join(b"%d,%d\n" % (i, i * i) for i in range(200)))
    with refused(r"table.csv is a damaged or cut-off gzip file; fetch or pack it anew"):
        list(rows(file(packed[: 2 if cut == 1 else -cut])))


def test_damaged_gzip_files_are_refused(file):
    packed = bytearray(gzip.compress(bytes(range(256)) * 20))
    packed[20:40] = bytes(20)
    with refused("is a damaged or cut-off gzip file"):
        read_all(file(bytes(packed)), 1 << 20)


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused_early(file):
    bomb = file(gzip.compress(b"1,2\n" * 4_000_000))
    assert bomb.stat().st_size < 100_000
    read = 0
    with refused("unpacks to more than 1,000,000 bytes"), opened(bomb, most=1_000_000) as stream:
        for line in stream:
            read += len(line)
    assert read <= 1_000_000
    with refused("unpacks to more than 1,000 bytes"):
        read_all(bomb, 1000)


def test_a_file_larger_than_needed_at_once_is_refused(file):
    assert read_all(file("12345"), 5) == b"12345"
    with refused("holds more than 4 bytes; cut it into smaller files"):
        read_all(file("12345"), 4)


def test_a_file_without_lines_is_not_read_whole(file):
    with refused(r"line 2 is longer than 1,048,576 bytes"):
        list(rows(file(b"a\n" + b"x" * (2 << 20))))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('a,b\n"x"y,2\n', r"line 2 is not CSV: ',' expected after '\"'"),
        ('a,b\n1,"open\n', r"line 2 is not CSV: unexpected end of data"),
        ("a,b\n1," + "x" * 200_000 + "\n", r"line 2 is not CSV: field larger than field limit"),
    ],
)
def test_what_is_no_csv_is_refused(file, content, sentence):
    with refused(sentence):
        list(rows(file(content)))


def test_rows_of_other_widths_are_refused(file):
    with refused(r"table.csv, line 2 has 3 cells; it must have 2"):
        list(rows(file("1,2\n1,2,3\n"), widths=(2,)))


def test_a_missing_file_is_a_sentence(tmp_path):
    with refused("nowhere.csv cannot be read .No such file or directory."):
        list(lines(tmp_path / "nowhere.csv"))


@given(st.lists(st.floats(-LARGEST, LARGEST), min_size=1))
def test_numbers_survive_as_text(values):
    assert numbers("here", range(len(values)), [repr(value) for value in values]) == values


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("", "t, line 7, column width is empty; it must be a number"),
        (None, "t, line 7, column width is empty; it must be a number"),
        ("wide", "t, line 7, column width is 'wide'; it must be a number, and one that fits 32 bits"),
        ("nan", "t, line 7, column width is 'nan'; it must be a number, and one that fits 32 bits"),
        ("1e39", "t, line 7, column width is '1e39'; it must be a number, and one that fits 32 bits"),
        ("-inf", "t, line 7, column width is '-inf'; it must be a number, and one that fits 32 bits"),
        ([1], r"t, line 7, column width is \[1\]; it must be a number, and one that fits 32 bits"),
    ],
)
def test_cells_that_are_no_numbers_are_named(cell, sentence):
    with refused(sentence):
        numbers("t, line 7", ["height", "width"], ["1.5", cell])


def test_long_cells_are_shown_short():
    with pytest.raises(UserError) as told:
        numbers("t", ["c"], ["x" * 500])
    assert len(str(told.value)) < 120


def test_columns_are_found_by_name(file):
    table = open_table(file("a, b ,c\n1,2,3\n4,5,6\n"))
    assert table.columns == ("a", "b", "c")
    assert list(table.rows(["c", "a"])) == [(2, ["3", "1"]), (3, ["6", "4"])]
    assert re.search(r"table.csv, line 3$", table.where(3))
    with refused("table.csv has no column 'd'; its columns are a, b, c"):
        table.rows(["a", "d"])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "table.csv is empty; its first line must name the columns"),
        ("a,b,a\n", "names the column 'a' twice"),
    ],
)
def test_tables_need_a_header(file, content, sentence):
    with refused(sentence):
        open_table(file(content))
