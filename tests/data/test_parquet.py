"""Parquet files part by part, and what is wrong with some."""

import json

import pytest

from fedbraid.data.formats import parquet
from fedbraid.errors import UserError

arrow = pytest.importorskip("pyarrow")


@pytest.fixture
def file(tmp_path):
    from pyarrow.parquet import write_table

    path = tmp_path / "own.parquet"
    table = arrow.table({"a": list(range(10)), "b": [f"t{i}" for i in range(10)], "c": [0] * 10})
    note = {"info": {"features": {"c": {"names": ["no", "yes"], "_type": "ClassLabel"}, "a": {"dtype": "int64"}}}}
    write_table(table.replace_schema_metadata({"huggingface": json.dumps(note)}), path, row_group_size=4)
    return path


def refused(sentence):
    return pytest.raises(UserError, match=rf"\A[^\n]*own.parquet[^\n]*{sentence}[^\n]*\Z")


def test_columns_come_in_blocks_in_the_order_asked_for(file):
    blocks = list(parquet.blocks(file, ("b", "a"), at_once=3))
    assert max(len(b) for b, _ in blocks) <= 3
    assert [value for b, _ in blocks for value in b] == [f"t{i}" for i in range(10)]
    assert [value for _, a in blocks for value in a] == list(range(10))
    assert parquet.columns(file) == ("a", "b", "c")
    assert parquet.count(file) == 10


def test_classes_names_are_in_the_writers_note(file):
    assert parquet.class_names(file, "c") == ("no", "yes")
    assert parquet.class_names(file, "a") == ()
    assert parquet.class_names(file, "d") == ()


def test_files_without_a_note_have_no_names(tmp_path):
    from pyarrow.parquet import write_table

    write_table(arrow.table({"c": [1]}), tmp_path / "plain.parquet")
    assert parquet.class_names(tmp_path / "plain.parquet", "c") == ()


def test_a_missing_column_is_named_with_those_there_are(file):
    with refused("has no column 'd'; its columns are a, b, c"):
        list(parquet.blocks(file, ("a", "d")))


@pytest.mark.parametrize("cut", [0, 3, 200, -1])
def test_files_cut_short_are_refused(file, cut):
    file.write_bytes(file.read_bytes()[:cut])
    with refused("is no whole Parquet file"):
        parquet.columns(file)


def test_damaged_content_is_refused(file):
    content = bytearray(file.read_bytes())
    content[4:60] = bytes(56)
    file.write_bytes(content)
    with refused("is no whole Parquet file"):
        list(parquet.blocks(file, ("a", "b", "c")))


def test_groups_that_promise_too_much_are_not_unpacked(file, monkeypatch):
    monkeypatch.setattr(parquet, "MOST", 10)
    with refused("has a row group of [0-9,]+ bytes; 10 are the most that are read"):
        parquet.columns(file)


def test_without_pyarrow_one_is_told_what_to_install(file, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with refused(r"needs pyarrow to be read; `pip install fedbraid\[hub\]` brings it"):
        parquet.columns(file)
