"""Partitions from files: who holds what is read as it is written, and every mistake has its sentence."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.data import Dataset, Split, make_partition
from fedbraid.data.partitions.assignment import assignment
from fedbraid.errors import UserError


def written(folder, text, name="clients.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def read(path, samples=4, clients=None):
    return assignment(np.zeros(samples), clients, path)


def shares(made):
    return [share.tolist() for share in made.clients]


def test_rows_come_in_any_order_and_clients_have_names(tmp_path):
    made = read(written(tmp_path, "sample,client\n3,zoë\n0,bob\n2,\n1,zoë\n"))
    assert shares(made) == [[0], [1, 3]]
    assert made.recipe == {"names": ["bob", "zoë"]}


def test_without_samples_the_rows_are_in_order(tmp_path):
    made = read(written(tmp_path, "\ufeffclient , age\n10,1\n9,2\n10,3\n 9 ,4\n"))
    assert shares(made) == [[1, 3], [0, 2]]
    assert made.recipe == {"names": ["9", "10"]}


@given(st.lists(st.sampled_from(["", "a", "b", "7", "Zoë, Åse", 'say "no"']), min_size=1, max_size=30).filter(any))
def test_what_is_written_is_read(tmp_path_factory, holders):
    import csv

    path = tmp_path_factory.getbasetemp() / "drawn.csv"
    order = sorted(range(len(holders)), key=lambda i: (i * 7) % 11)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("client", "sample"), *((holders[i], i) for i in order)])
    made = read(str(path), len(holders))
    assert made.recipe["names"] == sorted(set(holders) - {""})
    for name, share in zip(made.recipe["names"], shares(made), strict=True):
        assert share == [i for i, holder in enumerate(holders) if holder == name]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sample,client\n0,a\n1,a\n2,a\n4,a\n", "line 5 has the sample '4'; samples are whole numbers from 0 to 3"),
        ("sample,client\n0,a\n1,a\n-1,a\n", "line 4 has the sample '-1'; samples are whole numbers from 0 to 3"),
        ("sample,client\n0,a\n1,a\n²,a\n", "has the sample '²'; samples are whole numbers"),
        (f"sample,client\n{'9' * 5000},a\n", r"line 2 has the sample '9{36}\.\.\.'; samples are whole numbers"),
        ("sample,client\n0,a\n1,a\n1,b\n2,a\n3,b\n", "has sample 1 in 2 rows; a sample has one client"),
        ("sample,client\n0,a\n3,b\n", "has no row for 2 training samples, such as 1; every one needs a row"),
        ("sample,client\n", "has no row for 4 training samples"),
        ("client\na\nb\n", "has 2 rows for 4 training samples; without a column 'sample'"),
        ("sample,owner\n0,a\n", "has no column 'client'; its columns are sample, owner"),
        ("", "is empty; its first line must name the columns"),
        ("client\n,\n", "line 2 has 2 cells; it must have 1"),
        ('client\n"a\n', "line 2 is not CSV"),
        ("sample,client\n0,\n1,\n2,\n3,\n", "names no client"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(tmp_path, text, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        read(written(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["", 5, None, ["clients.csv"]])
def test_a_path_is_needed(path):
    with pytest.raises(UserError, match=r"such as path=clients.csv"):
        read(path)


@pytest.mark.parametrize("name", ["nothing.csv", "n" * 5000, "nul\0"])
def test_files_that_are_not_there_are_refused(tmp_path, name):
    with pytest.raises(UserError, match=r"path names .*, which is not there"):
        read(str(tmp_path / name))
    with pytest.raises(UserError, match="is no regular file"):
        read(str(tmp_path))


def test_a_path_may_begin_at_home_and_a_file_may_be_packed(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "packed.csv").write_bytes(gzip.compress(b"client\na\nb\nb\na\n"))
    assert shares(read("~/packed.csv")) == [[0, 3], [1, 2]]


def test_a_file_is_read_within_the_limits_of_tables(tmp_path, monkeypatch):
    monkeypatch.setattr("fedbraid.data.formats.streams.LONGEST", 10)
    with pytest.raises(UserError, match="line 2 is longer than 10 bytes"):
        read(written(tmp_path, f"client\n{'a' * 11}\n"))


def test_numbered_clients_are_ordered_by_size_whatever_their_length(tmp_path):
    names = ["9" * 5000, "10", "9", "007", "7", "1" + "0" * 5000, "0"]
    made = read(written(tmp_path, "client\n" + "\n".join(names) + "\n"), len(names))
    assert made.recipe["names"] == ["0", "007", "7", "9", "10", "9" * 5000, "1" + "0" * 5000]


def test_the_number_of_clients_may_be_given_if_it_is_right(tmp_path):
    path = written(tmp_path, "client\na\nb\na\nb\n")
    assert len(read(path, clients=2)) == 2
    with pytest.raises(UserError, match="has 2 clients, not 3; leave the number of clients out"):
        read(path, clients=3)


def test_the_recipe_names_the_file_and_the_clients(tmp_path):
    path = tmp_path / "clients.csv"
    written(tmp_path, "client\na\nb\na\nb\n")
    data = Dataset("four", *(Split(np.zeros((4, 1)), np.zeros(4, dtype=np.int64)) for _ in range(2)), classes=1)
    made = make_partition(data, "assignment", None, 0, path=path)
    recipe = json.loads(json.dumps(made.recipe))
    assert recipe["params"] == {"path": str(path)}
    assert recipe["names"] == ["a", "b"]
    again = make_partition(data, "assignment", recipe["clients"], recipe["seed"], **recipe["params"])
    assert shares(again) == shares(made) == [[0, 2], [1, 3]]


def test_parquet_is_read_like_csv(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "clients.parquet"
    parquet.write_table(pyarrow.table({"other": [0.5] * 4, "client": [12, 9, None, 9], "sample": [3, 0, 2, 1]}), path)
    made = read(str(path))
    assert shares(made) == [[0, 1], [3]]
    assert made.recipe == {"names": ["9", "12"]}
    (tmp_path / "broken.parquet").write_bytes(b"sample,client")
    with pytest.raises(UserError, match=r"broken.parquet is no whole Parquet file"):
        read(str(tmp_path / "broken.parquet"))


def test_parquet_without_pyarrow_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"clients.parquet needs pyarrow to be read"):
        read(written(tmp_path, "", "clients.parquet"))
