"""rFedAvg's split by similarity, against the published arithmetic in plain lists."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.core.random import stream
from fedbraid.data.partitions.similarity import similarity
from fedbraid.errors import UserError


def published(labels, order, s, clients):
    """Shuffle (`order`), cut at round(s n), sort the rest by label, then walk along both lists."""
    shuffled = [(int(i), int(labels[i])) for i in order]
    cut = round(s * len(shuffled))
    at_random, sorted_rest = shuffled[:cut], sorted(shuffled[cut:], key=lambda pair: pair[1])
    a, b = len(at_random) // clients, len(sorted_rest) // clients
    for k in range(clients):
        yield sorted(i for i, _ in at_random[k * a : (k + 1) * a] + sorted_rest[k * b : (k + 1) * b])


LABELS = st.lists(st.integers(0, 5), min_size=20, max_size=90).map(np.array)


@given(LABELS, LABELS, st.sampled_from([0, 0.05, 0.1, 1 / 3, 0.5, 1]), st.integers(1, 10))
def test_both_sets_are_split_as_published(labels, test_labels, s, clients):
    made = similarity(labels, test_labels, clients, stream(7, "test"), s)
    rng = stream(7, "test")
    for shares, y in ((made.clients, labels), (made.client_tests, test_labels)):
        expected = list(published(y, rng.permutation(len(y)), s, clients))
        assert [share.tolist() for share in shares] == expected


def test_s_runs_from_sorted_to_iid():
    labels = np.repeat(np.arange(10), 200)
    classes = [
        (similarity(labels, labels, 20, stream(0, "test"), s).label_counts(labels, 10) > 0).sum(axis=1)
        for s in (0, 0.1, 1)
    ]
    assert set(classes[0]) == {1}
    assert 2 < classes[1].mean() < 10
    assert set(classes[2]) == {10}


def test_the_test_set_can_stay_whole():
    labels = np.arange(30) % 3
    whole, split = (similarity(labels, labels, 3, stream(0, "test"), 0.5, told) for told in (False, True))
    assert whole.client_tests is None
    assert all(np.array_equal(a, b) for a, b in zip(whole.clients, split.clients, strict=True))


@pytest.mark.parametrize("s", [0, 0.1, 0.5, 1])
@pytest.mark.parametrize(("tests", "split_test"), [(5, True), (5, False), (90, True), (1, True)])
def test_the_suggested_number_of_clients_works_and_one_more_does_not(s, tests, split_test):
    labels = np.arange(30) % 3

    def split(clients):
        return similarity(labels, np.arange(tests) % 3, clients, stream(0, "test"), s, split_test)

    with pytest.raises(UserError) as refused:
        split(1000)
    works = int(re.search(r"clients=(\d+) ", str(refused.value))[1])
    made = split(works)
    assert all(len(share) for share in (*made.clients, *(made.client_tests or ())))
    with pytest.raises(UserError, match=rf"clients={works} "):
        split(works + 1)


def test_what_cannot_be_is_refused():
    labels, rng = np.arange(30) % 3, stream(0, "test")
    with pytest.raises(UserError, match="at most 1, not 10"):
        similarity(labels, labels, 3, rng, 10)
    with pytest.raises(UserError, match="split_test must be true or false"):
        similarity(labels, labels, 3, rng, 0.1, "no")
    with pytest.raises(UserError, match=r"30 samples at s=0\.1; clients=27 would work"):
        similarity(labels, labels, 28, rng)
    with pytest.raises(UserError, match=r"5 test samples .* clients=5 or split_test=false would work"):
        similarity(labels, labels[:5], 10, rng)
