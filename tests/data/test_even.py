"""Partitions without label skew: IID, stratified, and noise from client to client."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.core.random import stream
from fedbraid.data.partitions.dirichlet import quantity
from fedbraid.data.partitions.even import iid, noise, stratified
from fedbraid.errors import UserError


@given(st.integers(1, 200), st.data())
def test_iid_covers_everything_in_almost_equal_parts(samples, data):
    clients = data.draw(st.integers(1, samples))
    made = iid(np.zeros(samples), clients, stream(0, "test"))
    assert sorted(np.concatenate(made.clients)) == list(range(samples))
    assert len(made) == clients
    assert made.sizes.max() - made.sizes.min() <= 1


def test_iid_shuffles():
    first, _ = iid(np.zeros(1000), 2, stream(0, "test")).clients
    assert not np.array_equal(first, np.arange(500))
    assert not np.array_equal(first, np.arange(0, 1000, 2))


@pytest.mark.parametrize(("samples", "clients", "reason"), [(5, 6, "at most 5"), (0, 1, "no training samples")])
def test_iid_refuses_empty_clients(samples, clients, reason):
    with pytest.raises(UserError, match=reason):
        iid(np.zeros(samples), clients, stream(0, "test"))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=120).map(np.array), st.data())
def test_strata_are_equal_in_each_class_and_in_all(labels, data):
    clients = data.draw(st.integers(1, len(labels)))
    made = stratified(labels, clients, stream(0, "test"))
    held = made.label_counts(labels, 7)
    assert np.array_equal(held.sum(axis=0), np.bincount(labels, minlength=7))
    assert (held.max(axis=0) - held.min(axis=0) <= 1).all()
    assert made.sizes.max() - made.sizes.min() <= 1


def test_strata_are_dealt_at_random():
    labels = np.repeat(np.arange(2), 300)
    for share in stratified(labels, 3, stream(0, "test")).clients:
        assert abs(share[:100].mean() - 149.5) < 45
        assert not (np.diff(share[:100]) == 3).all()


def test_noise_grows_from_client_to_client_up_to_sigma():
    made, plain = noise(np.zeros(50), 4, stream(0, "test"), 0.2), iid(np.zeros(50), 4, stream(0, "test"))
    assert made.noise == pytest.approx((0.05, 0.1, 0.15, 0.2))
    assert all(np.array_equal(a, b) for a, b in zip(made.clients, plain.clients, strict=True))
    with pytest.raises(UserError, match="sigma must be a finite number above 0"):
        noise(np.zeros(50), 4, stream(0, "test"), 0)


def test_quantities_have_the_variance_of_a_dirichlet_and_labels_are_alike():
    labels, clients, beta = np.arange(2000) % 2, 4, 1.5
    runs = [quantity(labels, clients, stream(seed, "test"), beta, 1) for seed in range(400)]
    shares = np.array([run.sizes / 2000 for run in runs])
    assert (shares.sum(axis=1) == pytest.approx(1)) and shares.mean(axis=0) == pytest.approx(1 / clients, abs=0.03)
    expected = (1 / clients) * (1 - 1 / clients) / (clients * beta + 1)
    assert ((shares - 1 / clients) ** 2).mean() == pytest.approx(expected, rel=0.15)
    ones = np.array([labels[run.clients[0]].mean() for run in runs if run.sizes[0] > 200])
    assert ones == pytest.approx(0.5, abs=0.15)
