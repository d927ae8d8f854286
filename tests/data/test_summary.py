"""The numbers that describe a partition: counted by hand, and distances by scipy."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial import distance
from scipy.stats import entropy

from fedbraid.core.random import stream
from fedbraid.data import Dataset, Partition, Split, make_partition, summary
from fedbraid.data.partition_summary import distances_to, gini


def toy(samples=400):
    rng = stream(0, "toy")
    train, test = (Split(np.zeros((n, 2), np.float32), rng.integers(0, 4, n)) for n in (samples, 10))
    return Dataset("toy", train, test, classes=4)


def test_the_summary_counts_what_is_there():
    data = toy(samples=400)
    made = make_partition(data, "dirichlet_equal", 7, 0)
    told = json.loads(json.dumps(summary(data, made)))
    assert told["clients"] == 7
    assert told["samples"] == 400
    assert told["unused"] == 400 - 7 * 57
    assert told["sizes"] == {"min": 57, "median": 57.0, "max": 57}
    assert [sum(row) for row in told["label_counts"]] == [57] * 7
    assert told["label_counts"][2][1] == int((data.train.y[made.clients[2]] == 1).sum())
    assert told["recipe"] == made.recipe


def test_the_summary_measures_skew_in_nats():
    labels = np.array([0, 0, 1, 1])
    data = Dataset("two", Split(np.zeros((4, 1)), labels), Split(np.zeros((0, 1)), labels[:0]), classes=3)
    made = make_partition(data, "iid", 2, 0)
    pure = replace(made, clients=(np.array([0, 1]), np.array([2, 3])))
    mixed = replace(made, clients=(np.array([0, 2]), np.array([1, 3])))
    half = replace(made, clients=(np.array([0, 1]), np.array([2])), client_tests=None)
    assert summary(data, pure)["mean"]["to_global"]["kl"] == pytest.approx(np.log(2))
    assert summary(data, mixed)["mean"]["to_global"]["kl"] == 0
    assert summary(data, half)["unused"] == 1


def test_the_summary_of_a_regression_counts_no_labels():
    data = replace(toy(), task="regression")
    told = summary(data, make_partition(data, "iid", 4, 0))
    assert told["label_counts"] is None
    assert told["sizes"]["max"] == 100
    assert told["each"][0] == {"size": 100, "classes": None, "to_uniform": None, "to_global": None}
    assert told["imbalance"] == {"clients": 1.0, "classes": None}
    assert told["mean"] is None


def test_the_summary_describes_each_client():
    labels = np.array([0, 0, 0, 1, 1, 2])
    data = Dataset("three", Split(np.zeros((6, 1)), labels), Split(np.zeros((1, 1)), labels[:1]), classes=3)
    told = json.loads(json.dumps(summary(data, Partition((np.array([0, 1, 2]), np.array([3]), np.array([4, 5]))))))
    pure, single, mixed = told["each"]
    assert [client["size"] for client in told["each"]] == [3, 1, 2]
    assert [client["classes"] for client in told["each"]] == [1, 1, 2]
    assert pure["to_uniform"] == pytest.approx(
        {"kl": np.log(3), "l1": 4 / 3, "l2": np.sqrt(6) / 3, "cosine": 1 - 1 / np.sqrt(3)}
    )
    assert pure["to_global"]["kl"] == pytest.approx(np.log(2))
    assert single["to_global"]["l1"] == pytest.approx(4 / 3)
    assert mixed["to_global"]["l2"] == pytest.approx(np.linalg.norm([1 / 2, 1 / 6, 1 / 3]))
    assert told["mean"]["to_uniform"]["kl"] == pytest.approx((np.log(3) * 2 + np.log(3 / 2)) / 3)
    assert told["imbalance"] == {"clients": 3.0, "classes": 3.0}
    assert told["gini"] == pytest.approx(2 / 9)


def test_clients_and_classes_without_samples_have_no_numbers():
    labels = np.array([0, 1])
    data = Dataset("gap", Split(np.zeros((2, 1)), labels), Split(np.zeros((1, 1)), labels[:1]), classes=3)
    told = json.loads(json.dumps(summary(data, Partition((np.array([0, 1]), np.array([], dtype=np.int64))))))
    assert told["imbalance"] == {"clients": None, "classes": None}
    assert told["each"][1]["to_global"] == {"kl": None, "l1": None, "l2": None, "cosine": None}
    assert told["mean"]["to_uniform"]["kl"] == pytest.approx(np.log(3 / 2))


ROWS = st.lists(st.integers(0, 30), min_size=4, max_size=4).filter(any)


@given(st.lists(ROWS, min_size=1, max_size=5), ROWS.map(lambda row: [n + 1 for n in row]))
def test_distances_are_scipys(rows, target):
    told = distances_to(np.array(target), np.array(rows))
    aim = np.array(target) / sum(target)
    for client, row in enumerate(rows):
        shares = np.array(row) / sum(row)
        assert told["kl"][client] == pytest.approx(entropy(shares, aim), abs=1e-12)
        assert told["l1"][client] == pytest.approx(distance.cityblock(shares, aim), abs=1e-12)
        assert told["l2"][client] == pytest.approx(distance.euclidean(shares, aim), abs=1e-12)
        assert told["cosine"][client] == pytest.approx(distance.cosine(shares, aim), abs=1e-12)


@given(ROWS, st.integers(1, 5))
def test_equal_shares_are_no_distance_apart_and_never_less(target, times):
    for values in distances_to(np.array(target), np.array([target]) * times).values():
        assert 0 <= values[0] < 1e-7


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any))
def test_gini_is_half_the_relative_mean_difference(sizes):
    x = np.array(sizes)
    assert gini(x) == pytest.approx(abs(x[:, None] - x).mean() / 2 / x.mean(), abs=1e-12)
