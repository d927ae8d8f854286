"""Clients with few classes: exact numbers of classes, and shards of the sorted samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.core.random import stream
from fedbraid.data.partitions.few_classes import classes, shards
from fedbraid.errors import UserError

SIZES = st.lists(st.integers(3, 60), min_size=1, max_size=9)


@given(SIZES, st.data())
def test_everyone_holds_so_many_classes_and_holders_share_them_evenly(sizes, data):
    labels, total = np.repeat(np.arange(len(sizes)), sizes), len(sizes)
    each = data.draw(st.integers(1, total))
    room = min(sizes) * total // each
    clients = data.draw(st.integers(1, room) | st.just(room))
    held = classes(labels, clients, stream(0, "test"), each).label_counts(labels, total)
    assert ((held > 0).sum(axis=1) == each).all()
    holders = (held > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    for label in np.flatnonzero(holders):
        parts = held[held[:, label] > 0, label]
        assert parts.sum() == sizes[label]
        assert parts.max() - parts.min() <= 1
    assert np.count_nonzero(holders) == min(total, clients * each)
    with pytest.raises(UserError, match=f"; clients={room} would work"):
        classes(labels, room + 1, stream(0, "test"), each)


def test_which_classes_go_together_is_drawn():
    labels = np.repeat(np.arange(10), 50)
    held = classes(labels, 50, stream(0, "test")).label_counts(labels, 10) > 0
    pairs = {tuple(np.flatnonzero(row)) for row in held}
    assert len(pairs) > 20


@given(st.lists(st.integers(0, 6), min_size=1, max_size=90).map(np.array), st.data())
def test_shards_are_runs_of_the_sorted_samples(labels, data):
    each = data.draw(st.integers(1, min(4, len(labels))))
    clients = data.draw(st.integers(1, len(labels) // each))
    made = shards(labels, clients, stream(0, "test"), each)
    assert sorted(np.concatenate(made.clients)) == list(range(len(labels)))
    small, large = len(labels) // (clients * each), -(-len(labels) // (clients * each))
    assert each * small <= made.sizes.min() <= made.sizes.max() <= each * large
    # A run over classes a..b holds all there is of those between, so a client's classes can be cut into `each` runs.
    held = made.label_counts(labels, 7)
    everything = np.bincount(labels, minlength=7)
    for row in held:
        partly = np.count_nonzero((row > 0) & (row < everything))
        assert partly <= 2 * each


def test_two_shards_of_300_as_in_the_paper_of_fedavg():
    labels = stream(0, "labels").permutation(np.repeat(np.arange(10), 6000))
    made = shards(labels, 100, stream(0, "test"))
    assert set(made.sizes) == {600}
    held = made.label_counts(labels, 10)
    assert set(np.unique(held)) <= {0, 300, 600}  # 6,000 samples of a class are exactly 20 shards
    assert (held == 600).any()
    assert (held == 300).any(axis=1).mean() > 0.5  # neighbouring shards are rarely dealt to the same client


def test_samples_of_a_class_are_dealt_at_random():
    one_class = np.zeros(600, dtype=np.int64)
    for made in (classes(one_class, 3, stream(0, "test"), 1), shards(one_class, 3, stream(0, "test"))):
        assert all(abs(share.mean() - 299.5) < 60 for share in made.clients)
