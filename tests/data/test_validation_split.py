"""Training samples that are held out to validate on."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.data.dataset import Partition
from fedbraid.data.validation import divided, held_out_by
from fedbraid.errors import UserError

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(np.array)


@given(LABELS, st.floats(0.01, 0.99), st.integers(0, 9))
def test_a_client_gives_its_share_of_every_class_and_keeps_one(labels, share, seed):
    held = held_out_by(3, labels, share, seed)
    groups = [np.ones(len(labels), dtype=bool), *(labels == label for label in np.unique(labels))]
    for group in groups:
        due, got = share * group.sum(), int(held[group].sum())
        assert math.floor(due) - 1 <= got <= math.ceil(due)  # one less where it was the last that the client had
        if held.sum() != len(labels) - 1:
            assert got >= math.floor(due)
    assert not held.all()
    assert np.array_equal(held, held_out_by(3, labels, share, seed))


@pytest.mark.parametrize(
    "labels", [np.repeat([1, 0, 2], [10, 3, 1]), np.linspace(0, 1, 14)], ids=["classes", "numbers"]
)
def test_every_sample_is_as_likely_as_its_neighbour(labels):
    often = np.mean([held_out_by(0, labels, 0.2, seed) for seed in range(2000)], axis=0)
    # 2000 draws of probability 0.2 have a deviation of 0.009.
    assert abs(often - 0.2).max() < 0.04


def test_a_regressions_labels_are_spread_over_their_range():
    labels = np.random.default_rng(0).permutation(100.0 * np.arange(50))
    held = np.sort(labels[held_out_by(0, labels, 0.2, 1)])
    assert len(held) == 10 and np.allclose(np.diff(held), 500)


def test_clients_draw_by_themselves_and_by_the_seed():
    labels = np.arange(40) % 4
    draws = {held_out_by(client, labels, 0.25, seed).tobytes() for client in range(3) for seed in range(3)}
    assert len(draws) == 9


def test_who_holds_what_stays_but_for_what_is_held_out():
    labels, order = np.arange(30) % 3, np.random.default_rng(1).permutation(30)
    partition = Partition(
        (order[:20], order[20:29], order[29:]), {"name": "made up"}, (np.arange(2),) * 3, (0.0, 1.0, 2.0)
    )
    split = divided(partition, labels, 0.3, seed=0)
    left = split.training
    assert (left.recipe, left.client_tests, left.noise) == (partition.recipe, partition.client_tests, partition.noise)
    for before, after in zip(partition.clients, left.clients, strict=True):
        assert set(after) == set(before) - set(split.validation) and len(after)
        assert np.array_equal(after, before[np.isin(before, after)]), "in their old order"
    assert sum(map(len, left.clients)) + len(split.validation) == 30
    assert len(split.validation) == len(set(split.validation)) in (8, 9)
    assert list(left.sizes[:1]) == [14] and left.sizes[2] == 1


def test_without_a_share_the_partition_is_the_same_object():
    partition = Partition((np.arange(5),))
    split = divided(partition, np.zeros(5), 0.0, seed=0)
    assert split.training is partition and not len(split.validation)


def test_where_nothing_can_be_held_out_it_is_said():
    alone = Partition(tuple(np.arange(4)[:, None]))
    with pytest.raises(UserError, match=r"evaluate\.validation=0\.9 holds out none of the clients' 4 samples"):
        divided(alone, np.zeros(4), 0.9, seed=0)
