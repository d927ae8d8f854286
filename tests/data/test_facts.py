"""A data set told in plain values, and the samples that are shown of it."""

import json

import numpy as np

from fedbraid import data
from fedbraid.data import Dataset, Split
from fedbraid.data.dataset_facts import facts, some_classes, some_of_class


def test_digits():
    told = facts(data.load("digits"))
    assert json.loads(json.dumps(told)) == told
    assert (told["task"], told["source"], told["train"], told["test"]) == ("classification", "built in", 1438, 359)
    assert (told["sample"], told["type"], told["classes"]) == ([1, 8, 8], "uint8", 10)
    assert sum(row["train"] for row in told["per_class"]) == 1438
    assert told["per_class"][3] == {"class": 3, "name": "3", "train": 146, "test": 37}
    assert not {"users", "features", "vocabulary", "label"} & told.keys()


def test_users_and_features():
    made = data.load("synthetic", clients=4, max_size=60)
    told = facts(made)
    sizes = np.bincount(made.train.users)
    assert told["users"]["train"] == told["users"]["test"] == 4
    assert told["users"]["samples"] == {"min": sizes.min(), "median": np.median(sizes), "max": sizes.max()}
    assert told["features"]["max"] == [max(made.train.x[:, k].tolist()) for k in range(60)]
    assert told["features"]["min"] == [min(made.train.x[:, k].tolist()) for k in range(60)]


def test_a_regression_has_quantiles_of_its_label():
    y = np.array([4.0, 0, 1, 3, 2])
    made = Dataset("toy", Split(np.zeros((5, 1)), y), Split(np.zeros((1, 1)), y[:1]), 1, task="regression")
    told = facts(made)
    assert told["label"] == {"train": [0, 1, 2, 3, 4], "test": [4] * 5}
    assert "classes" not in told


def words(tokens, rows, **changes):
    x = np.array(rows, dtype=np.int32)
    split = Split(x, np.arange(len(x)))
    return Dataset("toy", split, split, len(x), tokens=tokens, labels=tuple("abc"[: len(x)]), **changes)


def test_texts_are_shown_as_they_were_written():
    told = facts(words(("<pad>", "<unk>", "no", "more"), [[2, 3, 0, 0], [1, 1, 2, 0], [3, 3, 3, 3]]))
    assert told["vocabulary"] == 4
    assert told["examples"] == [
        {"label": "a", "text": "no more"},
        {"label": "b", "text": "<unk> <unk> no"},
        {"label": "c", "text": "more more more more"},
    ]
    assert facts(words(("<pad>", "T", "o", " "), [[1, 2, 3, 1]]))["examples"] == [{"label": "a", "text": "To T"}]


def test_shown_samples_are_spread_over_their_class_and_classes_over_all():
    y = np.array([0] * 10 + [7] + [9] * 3)
    made = Dataset("toy", Split(np.zeros((14, 1)), y), Split(np.zeros((1, 1)), y[:1]), 10)
    assert some_classes(made, 5).tolist() == [0, 7, 9]
    assert some_classes(made, 2).tolist() == [0, 9]
    assert some_of_class(made, 0, 4).tolist() == [0, 3, 6, 9]
    assert some_of_class(made, 9, 4).tolist() == [11, 12, 13]
