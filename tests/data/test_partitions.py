"""Partitions by name: IID, natural, and what every one of them records."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.core.random import stream
from fedbraid.data import Dataset, Split, make_partition, summary
from fedbraid.data.partitions import iid, natural
from fedbraid.errors import UserError


def toy(samples=400, users=7):
    rng = stream(0, "toy")
    train, test = (
        Split(np.zeros((n, 2), np.float32), rng.integers(0, 4, n), rng.integers(0, users, n))
        for n in (samples, samples // 4)
    )
    return Dataset("toy", train, test, classes=4)


@given(st.integers(1, 200), st.data())
def test_iid_covers_everything_in_almost_equal_parts(samples, data):
    clients = data.draw(st.integers(1, samples))
    shares = iid(np.zeros(samples), clients, stream(0, "test"))
    assert sorted(np.concatenate(shares)) == list(range(samples))
    sizes = [len(share) for share in shares]
    assert len(sizes) == clients
    assert max(sizes) - min(sizes) <= 1


def test_iid_shuffles():
    first, _ = iid(np.zeros(1000), 2, stream(0, "test"))
    assert not np.array_equal(first, np.arange(500))
    assert not np.array_equal(first, np.arange(0, 1000, 2))


@pytest.mark.parametrize(("samples", "clients", "reason"), [(5, 6, "at most 5"), (0, 1, "no training samples")])
def test_iid_refuses_empty_clients(samples, clients, reason):
    with pytest.raises(UserError, match=reason):
        iid(np.zeros(samples), clients, stream(0, "test"))


@given(st.lists(st.sampled_from(["ann", "bob", "cy", "dee"]), min_size=1, max_size=30), st.integers(1, 5))
def test_natural_gives_each_user_its_own_samples(users, min_size):
    names = np.array(users)
    kept = sorted(name for name in set(users) if users.count(name) >= min_size)
    if not kept:
        most = max(users.count(name) for name in users)
        with pytest.raises(UserError, match=f"min_size={most} would"):
            natural(names, None, None, stream(0, "test"), min_size)
        return
    shares, tests = natural(names, names[::-1], None, stream(0, "test"), min_size)
    assert len(shares) == len(tests) == len(kept)
    for name, share, test in zip(kept, shares, tests, strict=True):
        assert list(share) == [i for i, user in enumerate(users) if user == name]
        assert list(test) == [i for i, user in enumerate(reversed(users)) if user == name]


def test_natural_users_without_test_samples_have_none():
    _, tests = natural(np.array([3, 3, 8]), np.array([3, 5]), None, stream(0, "test"))
    assert [list(test) for test in tests] == [[0], []]
    assert tests[1].dtype == np.int64


def test_natural_can_choose_some_users():
    users = np.repeat(np.arange(20), 3)
    chosen = [natural(users, None, 5, stream(seed, "test"))[0] for seed in range(4)]
    owners = [tuple(int(users[share[0]]) for share in shares) for shares in chosen]
    assert all(len(set(o)) == 5 and list(o) == sorted(o) for o in owners)
    assert len(set(owners)) > 1
    with pytest.raises(UserError, match="at most 20 clients"):
        natural(users, None, 21, stream(0, "test"))


def test_natural_needs_users():
    data = toy()
    data = replace(data, train=Split(data.train.x, data.train.y))
    with pytest.raises(UserError, match="does not say which user"):
        make_partition(data, "natural", None, 0)


ALL = [("iid", 6), ("dirichlet", 6), ("dirichlet_equal", 6), ("natural", None)]


@pytest.mark.parametrize(("name", "clients"), ALL)
def test_the_recipe_makes_the_partition_again(name, clients):
    data = toy()
    made = make_partition(data, name, clients, 3)
    recipe = json.loads(json.dumps(made.recipe))
    again = make_partition(data, recipe["name"], recipe["clients"], recipe["seed"], **recipe["params"])
    assert all(np.array_equal(a, b) for a, b in zip(made.clients, again.clients, strict=True))
    assert again.recipe == made.recipe
    assert (made.client_tests is not None) == (name == "natural")


@pytest.mark.parametrize("name", ["iid", "dirichlet", "dirichlet_equal"])
def test_another_seed_makes_another_partition(name):
    first, second = (make_partition(toy(), name, 6, seed) for seed in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(first.clients, second.clients, strict=True))


def test_parameters_reach_the_partition_and_its_recipe():
    made = make_partition(toy(), "dirichlet", 6, 0, min_size=np.int64(40))
    assert made.sizes.min() >= 40
    assert made.recipe["params"] == {"beta": 0.5, "min_size": 40}
    json.dumps(made.recipe)


def test_mistakes_are_answered_with_what_is_known():
    data = toy()
    with pytest.raises(UserError, match="did you mean 'dirichlet'"):
        make_partition(data, "dirichlett", 3, 0)
    with pytest.raises(UserError, match="known: beta, min_size"):
        make_partition(data, "dirichlet", 3, 0, alpha=1)
    with pytest.raises(UserError, match="takes no options"):
        make_partition(data, "iid", 3, 0, beta=1)
    with pytest.raises(UserError, match="needs a number of clients"):
        make_partition(data, "iid", None, 0)
    with pytest.raises(UserError, match="seed must be"):
        make_partition(data, "iid", 3, "zero")


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
    assert summary(data, pure)["mean_kl"] == pytest.approx(np.log(2))
    assert summary(data, mixed)["mean_kl"] == 0
    assert summary(data, half)["unused"] == 1


def test_the_summary_of_a_regression_counts_no_labels():
    data = replace(toy(), task="regression")
    told = summary(data, make_partition(data, "iid", 4, 0))
    assert told["label_counts"] is None
    assert told["mean_kl"] is None
    assert told["sizes"]["max"] == 100
