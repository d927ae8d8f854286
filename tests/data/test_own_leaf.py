"""Sets of a user's own in LEAF's JSON."""

import json

import numpy as np
import pytest

from fedbraid import data
from fedbraid.errors import UserError


@pytest.fixture
def write(tmp_path):
    def to(name, **users):
        path = tmp_path / "own" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        held = {user: {"x": [x for x, _ in own], "y": [y for _, y in own]} for user, own in users.items()}
        path.write_text(json.dumps({"users": list(users), "user_data": held}))
        return str(tmp_path / "own")

    return to


def refused(sentence):
    return pytest.raises(UserError, match=rf"\A[^\n]*{sentence}[^\n]*\Z")


def vectors(count, start=0):
    return [([i, i + 0.5], i % 3) for i in range(start, start + count)]


def test_split_folders_stay_split_and_users_are_the_same_in_both(write):
    write("train/a.json", ann=vectors(3), bob=vectors(2, 10))
    write("train/b.json", ann=vectors(1, 20), nobody=[])
    path = write("test/a.json", bob=vectors(1, 30), cid=vectors(1, 40))
    made = data.load("leaf", path=path)
    assert made.train.x.tolist() == [[i, i + 0.5] for i in (0, 1, 2, 10, 11, 20)]
    assert made.train.y.tolist() == [i % 3 for i in (0, 1, 2, 10, 11, 20)]
    assert made.train.users.tolist() == [0, 0, 0, 1, 1, 0]
    assert made.test.users.tolist() == [1, 2]
    assert made.test.x.dtype == np.float32
    assert made.classes == 3
    assert made.source == path


def test_one_file_is_split_within_users(write):
    folder = write("all.json", ann=vectors(10), bob=vectors(5, 50), one=vectors(1, 90))
    for path in (folder, folder + "/all.json"):
        made = data.load("leaf", path=path)
        assert np.bincount(made.test.users).tolist() == [2, 1]
        assert np.bincount(made.train.users).tolist() == [8, 4, 1]
        rows = np.concatenate([made.train.x, made.test.x])[:, 0]
        assert sorted(rows) == [*range(10), *range(50, 55), 90]
        owners = np.concatenate([made.train.users, made.test.users])
        assert (owners == np.digitize(rows, [20, 70])).all()
        assert (np.concatenate([made.train.y, made.test.y]) == rows % 3).all()


def test_images_take_their_shape(write):
    path = write("all.json", ann=[(list(range(i, i + 6)), 0) for i in range(10)])
    made = data.load("leaf", path=path, shape=[1, 2, 3])
    assert made.shape == (1, 2, 3)
    first = made.train.x[0].ravel()
    assert (np.diff(first) == 1).all()
    with refused(r"user 'ann' has samples of 6 numbers, which do not fit the shape \[1, 2, 2\]"):
        data.load("leaf", path=path, shape=[1, 2, 2])


def test_texts_and_names_of_classes(write):
    path = write("all.json", ann=[("good day", "up"), ("bad day", "down")] * 5)
    made = data.load("leaf", path=path, length=3)
    assert made.labels == ("down", "up")
    assert made.tokens[:3] == ("<pad>", "<unk>", "day")
    for x, y in zip(made.train.x, made.train.y, strict=True):
        assert [made.tokens[token] for token in x if token] == [("bad", "good")[y], "day"]


def test_a_regression_predicts_numbers(write):
    made = data.load("leaf", path=write("all.json", ann=[([i], i / 2) for i in range(10)]), task="regression")
    assert made.classes == 1
    assert made.train.y.tolist() == (made.train.x[:, 0] / 2).tolist()


def test_whole_numbers_are_classes_even_if_some_are_missing(write):
    made = data.load("leaf", path=write("all.json", ann=[([1], 7.0), ([2], 3), ([2], 3)]), test_share=0.4)
    assert made.classes == 8
    assert set(made.train.y.tolist()) | set(made.test.y.tolist()) == {3, 7}


@pytest.mark.parametrize(
    ("rows", "options", "sentence"),
    [
        (
            [([1, 2], 0), ([1], 0)],
            {},
            "a.json: user 'ann' has samples that are not lists of numbers, all of one length",
        ),
        ([(["1", None], 0)], {}, "a.json: user 'ann' has samples that are not lists of numbers"),
        ([(1, 0), (2, 1), (3, 0)], {}, "a.json: user 'ann' has samples that are not lists of numbers"),
        ([(1, 0), (2, 1), (3, 0)], {"shape": [1]}, "a.json: user 'ann' has samples that are not lists of numbers"),
        ([([], 0)] * 9, {}, "a.json: user 'ann' has samples that are not .*all of one length of at least 1"),
        ([([[]], 0)] * 9, {}, "a.json: user 'ann' has samples that are not lists of numbers"),
        ([([1e300], 0)], {}, "a.json: user 'ann' has numbers that do not fit 32 bits"),
        ([([1], -1)], {}, "a.json: user 'ann' has the label -1; a class is a name or a whole number from 0 on"),
        ([([1], 0.5)], {}, "a.json: user 'ann' has the label 0.5"),
        ([([1], None)], {}, "a.json: user 'ann' has the label None"),
        ([([1], 0), ([1], "a")] * 3, {}, "mix names and numbers as labels"),
        (
            [([1], "a")],
            {"task": "regression"},
            "a.json: user 'ann', column y is 'a'; it must be a number, and one that fits 32 bits",
        ),
        ([([1], 0)], {}, "nothing of .*a.json is left for the test split"),
        ([([1], 0)], {"shape": "28x28"}, "shape must be a list of sides such as"),
        ([([1], 0)], {"shape": [0]}, "each side in shape must be a whole number of at least 1"),
    ],
)
def test_mistakes_are_named(write, rows, options, sentence):
    with refused(sentence):
        data.load("leaf", path=write("a.json", ann=rows), **options)


def test_samples_of_two_kinds_are_refused(write):
    with refused("user 'bob' has samples that are no texts, as those before are"):
        data.load("leaf", path=write("a.json", ann=[("text", 0)], bob=[([1], 0)]))
    with refused("user 'bob' has samples of 2 numbers and those before have 1; all must be alike"):
        data.load("leaf", path=write("a.json", ann=[([1], 0)], bob=[([1, 2], 0)]))


@pytest.mark.parametrize(("known", "foreign"), [(1, 2), ("cat", "dog")])
def test_classes_that_only_the_test_samples_have_are_refused(write, known, foreign):
    write("train/a.json", ann=[([1], known)])
    with refused(f"own/test has the label {foreign!r}, which .*own/train has not"):
        data.load("leaf", path=write("test/a.json", bob=[([1], known), ([2], foreign)]))
    numbers = write("test/a.json", bob=[([1], 3), ([2], 4)])
    write("train/a.json", ann=[([1], 1)])
    assert data.load("leaf", path=numbers, task="regression").test.y.tolist() == [3, 4]


def test_folders_need_files(write, tmp_path):
    (tmp_path / "own" / "train").mkdir(parents=True)
    with refused("must hold JSON files, or the folders train/ and test/ with JSON files in both"):
        data.load("leaf", path=str(tmp_path / "own"))
    with refused("must hold JSON files"):
        data.load("leaf", path=write("train/a.json", ann=vectors(3)))
