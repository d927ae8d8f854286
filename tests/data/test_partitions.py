"""Every partition: sound or refused in time, reproducible, and recorded with what makes it again."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbraid.core.random import stream
from fedbraid.data import PARTITIONS, Dataset, Partition, Split, make_partition
from fedbraid.data.partitions.by_name import parse_partition
from fedbraid.data.partitions.natural import natural
from fedbraid.errors import UserError


def toy(samples=400, users=7):
    rng = stream(0, "toy")
    train, test = (
        Split(np.zeros((n, 2), np.float32), rng.integers(0, 4, n), rng.integers(0, users, n))
        for n in (samples, samples // 4)
    )
    return Dataset("toy", train, test, classes=4)


def labelled(labels, test_labels=(0, 1, 2) * 50):
    splits = (Split(np.zeros((len(y), 1)), np.array(y, dtype=np.int64)) for y in (labels, test_labels))
    return Dataset("labelled", *splits, classes=7)


def offers(error):
    """`…; clients=4, biased=3 and unbiased=1 would work`, or several joined by "or", as dictionaries."""
    text = str(error).split("; ")[-1]
    most = re.search(r"at most (\d+) clients", text)
    if most:
        return [{"clients": int(most[1])}]
    values = {"true": True, "false": False}
    return [
        {name: values[v] if v in values else float(v) if "." in v or "e" in v else int(v) for name, v in pairs}
        for pairs in (re.findall(r"(\w+)=([\w.+-]+)", offer) for offer in text.split(" or "))
    ]


LABELS = st.lists(st.integers(0, 6), max_size=120)
CONCENTRATIONS = st.sampled_from([1e-300, 0.01, 0.5, 3.0, 1.7e308])
SMALL = st.integers(1, 9)
REQUESTS = {
    "iid": {},
    "stratified": {},
    "noise": {"sigma": CONCENTRATIONS},
    "dirichlet": {"beta": CONCENTRATIONS, "min_size": SMALL},
    "dirichlet_equal": {"delta": CONCENTRATIONS},
    "quantity": {"beta": CONCENTRATIONS, "min_size": SMALL},
    "classes": {"classes_per_client": SMALL},
    "shards": {"shards_per_client": SMALL},
    "similarity": {"s": st.sampled_from([0, 0.1, 0.37, 1]), "split_test": st.booleans()},
    "niid2": {"unbiased": st.none() | st.integers(0, 9), "classes_per_client": st.none() | SMALL},
}
BY_FILE_OR_PACKAGE = {"assignment", "flower"}


def unused(name, labels, clients, params):
    """How many samples no client holds."""
    counts = np.bincount(labels)
    counts = counts[counts > 0]
    if name == "dirichlet_equal":
        return len(labels) % clients
    if name == "similarity":
        at_random = round(params["s"] * len(labels))
        return at_random % clients + (len(labels) - at_random) % clients
    return 0


def test_every_partition_is_under_test():
    assert {entry.name for entry in PARTITIONS} == {*REQUESTS, "natural", *BY_FILE_OR_PACKAGE}


@pytest.mark.parametrize("name", REQUESTS)
@given(labels=LABELS, clients=st.integers(1, 40), seed=st.integers(0, 3), data=st.data())
@settings(max_examples=60)
def test_every_request_is_met_or_answered_with_one_that_is(name, labels, clients, seed, data):
    params = {option: data.draw(values, option) for option, values in REQUESTS[name].items()}
    start = process_time()
    try:
        made = make_partition(labelled(labels), name, clients, seed, **params)
    except UserError as error:
        assert process_time() - start < 3
        if not labels or "do not consist of" in str(error):
            return
        assert offers(error)
        for offer in offers(error):
            request = {"clients": clients, **params} | offer
            assert request != {"clients": clients, **params}
            make_partition(labelled(labels), name, seed=seed, **request)
        return
    assert process_time() - start < 3
    assert len(made) == clients
    assert made.sizes.min() >= 1
    for parts in filter(None, (made.clients, made.client_tests)):
        together = np.concatenate(parts)
        assert len(np.unique(together)) == len(together)
        assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    if name not in ("classes", "niid2"):  # these two are counted in tests of their own
        assert made.sizes.sum() == len(labels) - unused(name, labels, clients, params)
    again = make_partition(labelled(labels), name, clients, seed, **params)
    assert all(np.array_equal(a, b) for a, b in zip(made.clients, again.clients, strict=True))


@pytest.mark.parametrize("name", REQUESTS)
def test_another_seed_makes_another_partition(name):
    first, second = (make_partition(toy(), name, 6, seed) for seed in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(first.clients, second.clients, strict=True))


@pytest.mark.parametrize("name", REQUESTS)
def test_more_clients_than_could_ever_be_fed_are_refused_at_once(name):
    start = process_time()
    with pytest.raises(UserError, match=r"would work|at most 400 clients"):
        make_partition(toy(), name, 10**9, 0)
    assert process_time() - start < 2


@pytest.mark.parametrize("name", sorted({*REQUESTS} - {"similarity"}))
def test_the_labels_of_a_regression_go_by_their_ranges(name):
    data, labels = toy(), np.random.default_rng(0).normal(size=400)
    numbers = replace(data, train=replace(data.train, y=labels), task="regression", classes=1)
    by_hand = replace(data, train=replace(data.train, y=np.argsort(np.argsort(labels)) // 40), classes=10)
    one, other = (make_partition(d, name, 5, 0) for d in (numbers, by_hand))
    assert all(map(np.array_equal, one.clients, other.clients))


def test_similarity_goes_by_the_numbers_of_a_regression_themselves():
    data = toy()
    labels = np.random.default_rng(0).normal(size=400)
    data = replace(data, train=replace(data.train, y=labels), test=replace(data.test, y=data.test.y / 4), classes=1)
    made = make_partition(replace(data, task="regression"), "similarity", 5, 0, s=0.0)
    held = [labels[own] for own in made.clients]
    assert all(low.max() < high.min() for low, high in pairwise(held))


# --- natural


@given(st.lists(st.sampled_from(["ann", "bob", "cy", "dee"]), min_size=1, max_size=30), st.integers(1, 5))
def test_natural_gives_each_user_its_own_samples(users, min_size):
    names = np.array(users)
    kept = sorted(name for name in set(users) if users.count(name) >= min_size)
    if not kept:
        most = max(users.count(name) for name in users)
        with pytest.raises(UserError, match=f"min_size={most} would"):
            natural(names, None, None, stream(0, "test"), min_size)
        return
    made = natural(names, names[::-1], None, stream(0, "test"), min_size)
    assert len(made) == len(made.client_tests) == len(kept)
    for name, share, test in zip(kept, made.clients, made.client_tests, strict=True):
        assert list(share) == [i for i, user in enumerate(users) if user == name]
        assert list(test) == [i for i, user in enumerate(reversed(users)) if user == name]


def test_natural_users_without_test_samples_have_none():
    tests = natural(np.array([3, 3, 8]), np.array([3, 5]), None, stream(0, "test")).client_tests
    assert [list(test) for test in tests] == [[0], []]
    assert tests[1].dtype == np.int64


def test_natural_can_leave_out_users_without_test_samples():
    users, tests = np.array([3, 3, 8, 8, 8, 9]), np.array([9, 3, 5])
    made = natural(users, tests, None, stream(0, "test"), tested=True)
    assert [list(share) for share in made.clients] == [[0, 1], [5]]
    assert [list(test) for test in made.client_tests] == [[1], [0]]
    assert [list(share) for share in natural(users, tests, None, stream(0, "test"), 2, tested=True).clients] == [[0, 1]]
    with pytest.raises(UserError, match="no user has 3 training samples; min_size=2"):
        natural(users, tests, None, stream(0, "test"), 3, tested=True)
    with pytest.raises(UserError, match="leave tested out"):
        natural(users, None, None, stream(0, "test"), tested=True)
    with pytest.raises(UserError, match="true or false, not 1"):
        natural(users, tests, None, stream(0, "test"), tested=1)


def test_natural_can_choose_some_users():
    users = np.repeat(np.arange(20), 3)
    chosen = [natural(users, None, 5, stream(seed, "test")).clients for seed in range(4)]
    owners = [tuple(int(users[share[0]]) for share in shares) for shares in chosen]
    assert all(len(set(o)) == 5 and list(o) == sorted(o) for o in owners)
    assert len(set(owners)) > 1
    with pytest.raises(UserError, match="at most 20 clients"):
        natural(users, None, 21, stream(0, "test"))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.data())
def test_natural_can_choose_the_largest(users, data):
    users = np.array(users)
    clients = data.draw(st.integers(1, len(np.unique(users))))
    shares = natural(users, None, clients, stream(0, "test"), choose="largest").clients
    owners = [int(users[share[0]]) for share in shares]
    by_size = sorted(set(users.tolist()), key=lambda user: (-np.count_nonzero(users == user), user))
    assert owners == sorted(by_size[:clients])


def test_natural_knows_two_ways_to_choose():
    with pytest.raises(UserError, match="choose must be one of random, largest, not 'first'"):
        make_partition(toy(), "natural", 3, 0, choose="first")


def test_natural_needs_users():
    data = toy()
    data = replace(data, train=Split(data.train.x, data.train.y))
    with pytest.raises(UserError, match="does not say which user"):
        make_partition(data, "natural", None, 0)


# --- recipes


@pytest.mark.parametrize(("name", "clients"), [*((name, 6) for name in REQUESTS), ("natural", None), ("natural", 3)])
def test_the_recipe_makes_the_partition_again(name, clients):
    data = toy()
    made = make_partition(data, name, clients, 3)
    recipe = json.loads(json.dumps(made.recipe))
    again = make_partition(data, recipe["name"], recipe["clients"], recipe["seed"], **recipe["params"])
    assert all(np.array_equal(a, b) for a, b in zip(made.clients, again.clients, strict=True))
    assert again.recipe == made.recipe
    assert again.noise == made.noise
    assert (made.client_tests is not None) == (name in ("natural", "similarity"))


def test_parameters_reach_the_partition_and_its_recipe():
    made = make_partition(toy(), "dirichlet", 6, 0, min_size=np.int64(40))
    assert made.sizes.min() >= 40
    new = {"long_tail": None, "draws": None, "draws_seed": None}
    assert made.recipe["params"] == {"beta": 0.5, "min_size": 40} | new
    json.dumps(made.recipe)


def test_mistakes_are_answered_with_what_is_known():
    data = toy()
    with pytest.raises(UserError, match="did you mean 'dirichlet'"):
        make_partition(data, "dirichlett", 3, 0)
    with pytest.raises(UserError, match="known: beta, draws, draws_seed, long_tail, min_size"):
        make_partition(data, "dirichlet", 3, 0, alpha=1)
    with pytest.raises(UserError, match="takes no options"):
        make_partition(data, "iid", 3, 0, beta=1)
    with pytest.raises(UserError, match="needs a number of clients"):
        make_partition(data, "iid", None, 0)
    with pytest.raises(UserError, match="seed must be"):
        make_partition(data, "iid", 3, "zero")
    with pytest.raises(UserError, match="no option of partition 'flower' is called 'rng'"):
        make_partition(data, "flower", 3, 0, rng=1)


@pytest.mark.parametrize(
    ("text", "name", "params"),
    [
        ("iid", "iid", {}),
        (" dirichlet( beta=0.5 ,min_size=3) ", "dirichlet", {"beta": 0.5, "min_size": 3}),
        ("natural(choose=largest)", "natural", {"choose": "largest"}),
        ("similarity(s=0, split_test=false)", "similarity", {"s": 0, "split_test": False}),
        ("assignment(path='my clients.csv')", "assignment", {"path": "my clients.csv"}),
        ("flower(partitioner=X, alpha=[1, 2])", "flower", {"partitioner": "X", "alpha": [1, 2]}),
    ],
)
def test_partitions_are_read_as_they_are_written(text, name, params):
    assert parse_partition(text) == (name, params)


@pytest.mark.parametrize("text", ["", "iid+iid", "dirichlet(0.5)", "dirichlet(beta=)", "3", "dirichlet(beta=f())"])
def test_what_is_not_a_partition_is_refused(text):
    with pytest.raises(UserError, match=r"is not a partition; write .* such as dirichlet\(beta=0.5\)"):
        parse_partition(text)


def test_written_partitions_must_be_known():
    with pytest.raises(UserError, match="did you mean 'dirichlet'"):
        parse_partition("dirichlett")
    with pytest.raises(UserError, match="known: beta, draws, draws_seed, long_tail, min_size"):
        parse_partition("dirichlet(alpha=1)")


@given(st.lists(st.lists(st.integers(0, 39), min_size=1, max_size=9), min_size=1, max_size=6), st.integers(5, 8))
def test_labels_are_counted_client_by_client(held, classes):
    """Clients may share samples, and classes may have none."""
    labels = (np.arange(40) % 5).astype(np.uint8)
    counts = Partition(tuple(np.array(own) for own in held)).label_counts(labels, classes)
    assert counts.tolist() == [[sum(labels[i] == c for i in own) for c in range(classes)] for own in held]
