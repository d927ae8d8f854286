"""FedDisco's NIID-2: the published index arithmetic, and what holds beyond the settings it was published for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.core.random import stream
from fedbraid.data.partitions.niid2 import niid2
from fedbraid.errors import UserError


class Unshuffled:
    """A generator that leaves every class in its order, as the published code does."""

    def permutation(self, x):
        return x


def published(labels, biased, unbiased, each):
    """The published slices of the sorted samples, for balanced classes that the clients divide."""
    classes, clients = labels.max() + 1, biased + unbiased
    order, per_class = np.argsort(labels, kind="stable"), len(labels) // classes
    shard, group = per_class // clients, classes // each  # a group of biased clients holds every class once
    for client in range(biased):
        starts = [(each * client + j) % classes * per_class + client // group * group * shard for j in range(each)]
        yield np.concatenate([order[start : start + group * shard] for start in starts])
    for client in range(unbiased):
        starts = [label * per_class + (biased + client) * shard for label in range(classes)]
        yield np.concatenate([order[start : start + shard] for start in starts])


@pytest.mark.parametrize(
    ("classes", "per_class", "biased", "unbiased", "each", "size"),
    [
        (10, 5000, 5, 1, 2, 8330),  # CIFAR-10
        (10, 6000, 5, 1, 2, 10_000),  # Fashion-MNIST
        (100, 500, 5, 1, 20, 8300),  # CIFAR-100
        (10, 5000, 50, 10, 2, 830),  # partial participation
        (10, 5000, 40, 10, 2, 1000),  # the same in appendix B.3
        (4, 30_000, 4, 1, 2, 24_000),  # AG News
        (4, 30_000, 40, 10, 2, 2400),
    ],
)
def test_papers_settings_give_the_published_slices(classes, per_class, biased, unbiased, each, size):
    labels = stream(0, "labels").permutation(np.repeat(np.arange(classes), per_class))
    made = niid2(labels, None, Unshuffled(), biased, unbiased, each)
    assert list(made.sizes) == [size] * (biased + unbiased)
    for share, expected in zip(made.clients, published(labels, biased, unbiased, each), strict=True):
        assert np.array_equal(share, np.sort(expected))


def test_the_first_setting_is_the_default():
    for classes in (10, 100):
        labels = np.repeat(np.arange(classes), 60)
        default, given = (
            niid2(labels, *args) for args in ((None, Unshuffled()), (6, Unshuffled(), 5, 1, classes // 5))
        )
        assert all(np.array_equal(a, b) for a, b in zip(default.clients, given.clients, strict=True))


def test_six_clients_of_cifar10_hold_8330_each(real_data):
    place = real_data("cifar-10-batches-bin/data_batch_1.bin") / "cifar-10-batches-bin"
    rows = [np.fromfile(place / f"data_batch_{k}.bin", dtype=np.uint8).reshape(-1, 3073) for k in range(1, 6)]
    labels = np.concatenate([row[:, 0] for row in rows]).astype(np.int64)
    made = niid2(labels, 6, stream(0, "test"))
    assert list(made.sizes) == [8330] * 6
    held = made.label_counts(labels, 10)
    assert np.array_equal(held[:5], 4165 * np.kron(np.eye(5, dtype=int), [1, 1]))
    assert list(held[5]) == [833] * 10


SIZES = st.lists(st.integers(20, 60), min_size=1, max_size=9)


@given(SIZES, st.integers(0, 12), st.integers(0, 8), st.integers(1, 9))
def test_any_classes_and_any_numbers(sizes, biased, unbiased, each):
    labels, classes = np.repeat(np.arange(len(sizes)), sizes), len(sizes)
    try:
        made = niid2(labels, None, stream(0, "test"), biased, unbiased, each)
    except UserError:
        return  # that its offers hold is tested with all partitions
    held = made.label_counts(labels, classes)
    wanted = np.zeros(classes)
    for client in range(biased):
        own = [(client * each + j) % classes for j in range(each)]
        assert set(np.flatnonzero(held[client])) == set(own)
        wanted[own] += classes / each
    # The most wanted class decides how many shards a class is cut into, and a part of a shard is lost in rounding.
    shards = unbiased + wanted.max(initial=0)
    shard = np.floor(np.array(sizes) / shards + 1e-9)
    for client in range(biased):
        own = held[client] > 0
        assert np.array_equal(held[client][own], np.floor(shard[own] * classes / each + 1e-9))
    assert np.array_equal(held[biased:], np.broadcast_to(shard, (unbiased, classes)))
    assert (held.sum(axis=0) <= sizes).all()


@pytest.mark.parametrize(
    ("clients", "biased", "unbiased", "numbers"),
    [
        (None, None, None, (5, 1)),
        (8, None, None, (7, 1)),
        (8, 5, None, (5, 3)),
        (8, None, 3, (5, 3)),
        (None, 5, 3, (5, 3)),
        (None, 3, None, (3, 1)),
        (None, None, 3, (5, 3)),
        (4, 4, 0, (4, 0)),
        (4, 0, None, (0, 4)),
    ],
)
def test_two_numbers_give_the_third(clients, biased, unbiased, numbers):
    labels = np.repeat(np.arange(10), 100)
    made = niid2(labels, clients, stream(0, "test"), biased, unbiased)
    few = (made.label_counts(labels, 10) > 0).sum(axis=1) < 10
    assert (few.sum(), (~few).sum()) == numbers
    assert list(few) == sorted(few, reverse=True)


@pytest.mark.parametrize("numbers", [(6, 6, 1), (6, 7, None), (6, None, 7), (6, 5, 2)])
def test_numbers_that_do_not_add_up_are_refused(numbers):
    clients, biased, unbiased = numbers
    with pytest.raises(UserError, match=r"clients=6 do not consist of biased=.* give two of the three"):
        niid2(np.repeat(np.arange(10), 100), clients, stream(0, "test"), biased, unbiased)


def test_nobody_is_refused():
    with pytest.raises(UserError, match="there must be a client"):
        niid2(np.zeros(9, dtype=np.int64), None, stream(0, "test"), 0, 0)


def test_offers_keep_what_they_can():
    labels = np.repeat(np.arange(10), 30)
    with pytest.raises(UserError, match="clients=26, biased=25 and unbiased=1 would work"):
        niid2(labels, 51, stream(0, "test"))
    with pytest.raises(UserError, match="classes_per_client=10 would work"):
        niid2(labels, 6, stream(0, "test"), classes_per_client=11)
    assert niid2(labels, 26, stream(0, "test")).sizes.min() == 10
