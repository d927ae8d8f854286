"""Both Dirichlet partitions: sound for every input, refused in time, and skewed as their parameter says."""

from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbraid.core.random import stream
from fedbraid.data.partition_summary import distances_to
from fedbraid.data.partitions.dirichlet import dirichlet, dirichlet_equal
from fedbraid.errors import UserError

LABELS = st.lists(st.integers(0, 6), max_size=120).map(lambda xs: np.array(xs, dtype=np.int64))
CONCENTRATIONS = st.sampled_from([1e-300, 1e-6, 0.01, 0.5, 3.0, 1e6, 1.7e308]) | st.floats(1e-3, 1e3)
BALANCED = np.repeat(np.arange(10), 300)


def counts(labels, partition):
    return partition.label_counts(labels, labels.max() + 1)


def skew(labels, partition):
    return mean_kl(counts(labels, partition), labels)


def mean_kl(held, labels):
    return distances_to(np.bincount(labels), held)["kl"].mean()


def assert_sound(shares):
    together = np.concatenate(shares)
    assert len(np.unique(together)) == len(together)
    for share in shares:
        assert share.dtype == np.int64
        assert (np.diff(share) > 0).all()


def suggestions(error):
    """`…; min_size=7 or beta=100 would work` as [{"min_size": 7}, {"beta": 100.0}]."""
    offers = str(error).split("; ")[-1].removesuffix(" would work").split(" or ")
    pairs = [[part.split("=") for part in offer.split(" with ")] for offer in offers]
    return [{name: float(v) if name == "beta" else int(v) for name, v in offer} for offer in pairs]


@given(LABELS, st.integers(1, 40), CONCENTRATIONS, st.integers(1, 12), st.integers(0, 5))
@settings(max_examples=80, deadline=None)
def test_every_request_is_met_in_full_or_answered_with_one_that_is(labels, clients, beta, min_size, seed):
    request = {"clients": clients, "beta": beta, "min_size": min_size}
    try:
        shares = dirichlet(labels, rng=stream(seed, "test"), **request).clients
    except UserError as error:
        if not len(labels):
            assert "no training samples" in str(error)
            return
        assert suggestions(error)
        for offer in suggestions(error):
            assert offer != {name: request[name] for name in offer}
            better = request | offer
            shares = dirichlet(labels, rng=stream(seed, "test"), **better).clients
            assert min(map(len, shares)) >= better["min_size"]
        return
    assert len(shares) == clients
    assert_sound(shares)
    assert sum(map(len, shares)) == len(labels)
    assert min(map(len, shares)) >= min_size


@given(LABELS.filter(len), CONCENTRATIONS, st.integers(0, 5), st.data())
@settings(max_examples=80, deadline=None)
def test_equal_clients_are_equal_for_every_input(labels, delta, seed, data):
    clients = data.draw(st.integers(1, len(labels)))
    shares = dirichlet_equal(labels, clients, stream(seed, "test"), delta).clients
    assert [len(share) for share in shares] == [len(labels) // clients] * clients
    assert_sound(shares)


def test_full_clients_receive_no_more():
    for seed in range(5):
        held = counts(BALANCED, dirichlet(BALANCED, 10, stream(seed, "test"), 0.3))
        before = np.cumsum(held, axis=1) - held
        full = before >= len(BALANCED) / 10
        assert full.any()
        assert (held[full] == 0).all()


def test_shares_of_a_class_have_the_variance_of_a_dirichlet():
    one_class, clients, beta = np.zeros(2000, dtype=np.int64), 4, 1.5
    runs = [dirichlet(one_class, clients, stream(seed, "test"), beta, 1).clients for seed in range(400)]
    shares = np.array([[len(share) / 2000 for share in run] for run in runs])
    expected = (1 / clients) * (1 - 1 / clients) / (clients * beta + 1)
    assert shares.mean(axis=0) == pytest.approx(1 / clients, abs=0.03)
    assert ((shares - 1 / clients) ** 2).mean() == pytest.approx(expected, rel=0.15)


def test_beta_runs_from_one_class_per_client_to_iid():
    even, mild, strong, pure = (
        np.mean([skew(BALANCED, dirichlet(BALANCED, 10, stream(s, "test"), beta)) for s in range(5)])
        for beta in (1e6, 5.0, 0.3, 1e-6)
    )
    assert even < 0.001 < mild < 0.3
    assert 0.5 < strong < pure
    assert pure == pytest.approx(np.log(10))


def test_delta_runs_from_few_classes_per_client_to_iid():
    even, mild, strong = (
        np.mean([skew(BALANCED, dirichlet_equal(BALANCED, 10, stream(s, "test"), delta)) for s in range(5)])
        for delta in (1e6, 1.0, 0.05)
    )
    assert even < 0.05 < mild < 0.6
    assert strong > 1


def test_equal_clients_draw_as_the_published_loop_does():
    """The plain loop: one masked, renormalised draw after the other."""
    labels, clients, delta = np.repeat(np.arange(5), [120, 100, 80, 60, 40]), 8, 0.5

    def plain(rng):
        left, held = np.bincount(labels), np.zeros((clients, 5), dtype=np.int64)
        priors = rng.dirichlet(np.full(5, delta), clients)
        while left.sum():
            client = rng.choice(np.flatnonzero(held.sum(axis=1) < len(labels) // clients))
            mass = priors[client] * (left > 0)
            label = rng.choice(5, p=mass / mass.sum())
            held[client, label] += 1
            left[label] -= 1
        return mean_kl(held, labels)

    seeds = range(40)
    expected = np.mean([plain(stream(seed, "plain")) for seed in seeds])
    actual = np.mean([skew(labels, dirichlet_equal(labels, clients, stream(seed, "ours"), delta)) for seed in seeds])
    assert actual == pytest.approx(expected, rel=0.1)


def test_clients_turned_away_by_a_class_choose_evenly_among_the_others():
    """The one sample of class 0 soon goes, and a third of the 600 clients ask for it first."""
    labels = np.repeat(np.arange(3), [1, 500, 500])
    held = counts(labels, dirichlet_equal(labels, 600, stream(0, "test"), 1e6)).sum(axis=0)
    assert held[1] == pytest.approx(300, abs=50)


@pytest.mark.parametrize("clients", [6, 12, 20])
@pytest.mark.parametrize("beta", [1e-6, 0.1])
def test_a_beta_that_is_offered_works(clients, beta):
    labels = np.repeat(np.arange(3), 40)
    fair = 120 // clients - 2
    with pytest.raises(UserError, match=r"beta=.* would work") as caught:
        dirichlet(labels, clients, stream(0, "test"), beta, fair)
    offered = next(offer["beta"] for offer in suggestions(caught.value) if "beta" in offer)
    assert offered > beta
    assert min(map(len, dirichlet(labels, clients, stream(0, "test"), offered, fair).clients)) >= fair


def test_the_indices_of_a_class_are_dealt_at_random():
    one_class = np.zeros(600, dtype=np.int64)
    for shares in (
        dirichlet(one_class, 3, stream(0, "test"), 5.0).clients,
        dirichlet_equal(one_class, 3, stream(0, "test")).clients,
    ):
        assert all(abs(share.mean() - 299.5) < 60 for share in shares)


def test_fifty_thousand_samples_and_a_hundred_clients_take_no_time():
    labels = np.repeat(np.arange(100), 500)
    start = process_time()
    dirichlet_equal(labels, 100, stream(0, "test"))
    dirichlet(labels, 100, stream(0, "test"))
    assert process_time() - start < 2


def test_more_clients_than_could_ever_be_fed_are_refused_at_once():
    start = process_time()
    with pytest.raises(UserError, match=r"need 10000000000 samples and there are 3000; clients=\d+ would work"):
        dirichlet(BALANCED, 10**9, stream(0, "test"))
    with pytest.raises(UserError, match="at most 3000 clients"):
        dirichlet_equal(BALANCED, 3001, stream(0, "test"))
    assert process_time() - start < 1


@pytest.mark.parametrize("bad", [0, -1, 2.5, "ten", True])
def test_clients_and_min_size_are_whole_numbers(bad):
    for call in (
        lambda: dirichlet(BALANCED, bad, stream(0, "test")),
        lambda: dirichlet_equal(BALANCED, bad, stream(0, "test")),
        lambda: dirichlet(BALANCED, 3, stream(0, "test"), min_size=bad),
    ):
        with pytest.raises(UserError, match="must be a whole number of at least 1"):
            call()


@pytest.mark.parametrize("bad", [0, -0.5, float("nan"), float("inf"), 10**400, "0.5", True])
def test_concentrations_are_finite_and_positive(bad):
    with pytest.raises(UserError, match="beta must be a finite number above 0"):
        dirichlet(BALANCED, 3, stream(0, "test"), beta=bad)
    with pytest.raises(UserError, match="delta must be a finite number above 0"):
        dirichlet_equal(BALANCED, 3, stream(0, "test"), delta=bad)


def test_no_samples_are_refused():
    with pytest.raises(UserError, match="no training samples"):
        dirichlet_equal(np.zeros(0, dtype=np.int64), 1, stream(0, "test"))
