"""LEAF's JSON: what is read, and the sentence about what is not LEAF's."""

import gzip
import json

import pytest

from fedbraid.data.formats import leaf
from fedbraid.data.formats.leaf import json_files, samples, user_data
from fedbraid.errors import UserError

GOOD = {
    "users": ["b", "a"],
    "num_samples": [1, 2],
    "user_data": {"a": {"x": [[1], [2]], "y": [0, 1]}, "b": {"x": [[3]], "y": [1]}},
}


@pytest.fixture
def file(tmp_path):
    def write(content, name="data.json"):
        path = tmp_path / name
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


def refused(sentence):
    return pytest.raises(UserError, match=rf"\A[^\n]*data.json[^\n]*{sentence}[^\n]*\Z")


@pytest.mark.parametrize("name", ["data.json", "data.json.gz"])
def test_users_come_in_their_order_with_their_samples(file, name):
    assert list(samples(file(GOOD, name))) == [("b", [[3]], [1]), ("a", [[1], [2]], [0, 1])]


def test_files_come_by_name(tmp_path):
    for name in ("b.json", "a.json.gz", "readme.md", "c.json"):
        (tmp_path / name).touch()
    assert [path.name for path in json_files(tmp_path)] == ["a.json.gz", "b.json", "c.json"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is not JSON"),
        ('{"users": ["a"', "is not JSON"),
        ("[1, 2]", "is not LEAF's JSON"),
        ({"users": []}, "is not LEAF's JSON, which is an object with 'users' and 'user_data'"),
        (GOOD | {"users": "a"}, "'users' must be a list of names"),
        (GOOD | {"users": [1]}, "'users' must be a list of names"),
        (GOOD | {"user_data": []}, "'user_data' must be an object"),
        (GOOD | {"users": ["c"]}, "user 'c' is in 'users' and has no object in 'user_data'"),
        (GOOD | {"user_data": {"a": 1, "b": 2}}, "user 'b' is in 'users' and has no object"),
        (GOOD | {"user_data": {"b": {"x": [[1]]}}}, "user 'b' lacks the lists 'x' and 'y'"),
        (GOOD | {"user_data": {"b": {"x": [[1]], "y": 1}}}, "user 'b' lacks the lists"),
        (GOOD | {"user_data": {"b": {"x": [[1]], "y": []}}}, "user 'b' has 1 samples and 0 labels"),
        (json.dumps(GOOD).replace("[3]", "[NaN]"), "holds NaN, which is no number"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"users": ' + "9" * 5000 + "}", "is not JSON"),
    ],
)
def test_what_is_not_leafs_is_refused(file, content, sentence):
    with refused(sentence):
        list(samples(file(content)))


def test_other_encodings_are_refused(tmp_path):
    path = tmp_path / "data.json"
    path.write_bytes(b'{"users": ["\xff\xe9"]}')
    with refused("is not UTF-8, as JSON must be"):
        list(user_data(path))


def test_files_too_large_to_be_parsed_at_once_are_refused(file, monkeypatch):
    monkeypatch.setattr(leaf, "MOST", 50)
    with refused("holds more than 50 bytes"):
        list(user_data(file(GOOD)))
    with pytest.raises(UserError, match=r"data.json.gz unpacks to more than 50 bytes"):
        list(user_data(file(GOOD, "data.json.gz")))
