"""Clients on workers: balanced by cost and speed, moved seldom and few at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.core.plan import LocalWork
from fedbraid.engines.ray.cluster import group_by_share
from fedbraid.engines.ray.placement import assign_clients, costs, loads, rebalance, seconds, worth_moving

COSTS = st.lists(st.integers(1, 1000), min_size=1, max_size=60).map(lambda c: np.array(c, dtype=np.float64))
SPEEDS = st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=8).map(np.array)


def test_what_a_client_costs():
    sizes = np.array([3, 100])
    assert costs(sizes, LocalWork(batch=10, epochs=2)).tolist() == [6, 200]
    assert costs(sizes, LocalWork(batch=10, steps=5)).tolist() == [15, 50]
    assert costs(sizes, LocalWork(batch=0, steps=5)).tolist() == [15, 500]


@given(COSTS, SPEEDS)
def test_nobody_is_left_out_or_idle(cost, speed):
    home = assign_clients(cost, speed)
    assert len(home) == len(cost) and home.min() >= 0 and home.max() < len(speed)
    if len(cost) >= len(speed):
        assert (np.bincount(home, minlength=len(speed)) > 0).all()


@given(COSTS, st.integers(1, 8))
def test_equal_workers_are_done_nearly_together(cost, workers):
    """Graham's bound: dearest first is at most 4/3 of the best there is, which is at least the mean and the dearest."""
    least = max(cost.sum() / workers, cost.max())
    two = np.sort(cost)[::-1][workers - 1 : workers + 1]
    least = max(least, two.sum() if len(two) == 2 else 0.0)  # some worker has two of the first workers + 1
    assert seconds(assign_clients(cost, np.ones(workers)), cost, np.ones(workers)) <= 4 / 3 * least + 1e-9


@given(COSTS, SPEEDS, st.randoms())
def test_evening_out_never_makes_it_slower_nor_empties_a_worker(cost, speed, rng):
    home = np.array([rng.randrange(len(speed)) for _ in cost])
    other = rebalance(home, cost, speed)
    assert seconds(other, cost, speed) <= seconds(home, cost, speed) + 1e-9
    held = loads(home, cost, len(speed)) > 0
    assert (loads(other, cost, len(speed))[held] > 0).all()


def test_evening_out_moves_few():
    cost, speed = np.ones(100), np.array([1.0, 1.0, 2.0])
    home = assign_clients(cost, np.ones(3))
    other = rebalance(home, cost, speed)
    assert np.bincount(other).tolist() == [25, 25, 50]
    assert (home != other).sum() == 17  # no more than have to
    assert (rebalance(other, cost, speed) == other).all()


def test_many_clients_are_dealt_in_little_time():
    cost = np.random.default_rng(0).integers(1, 500, 200_000).astype(np.float64)
    load = loads(assign_clients(cost, np.ones(100)), cost, 100)
    assert load.max() / load.mean() < 1.001


@pytest.mark.parametrize(
    ("now", "then", "rounds", "move", "worth"),
    [
        (10.0, 5.0, 100, 20.0, True),
        (10.0, 9.0, 100_000, 1.0, False),  # too little to be sure
        (10.0, 5.0, 3, 20.0, False),  # too late
        (10.0, 5.0, 8, 20.0, True),
    ],
)
def test_a_move_has_to_be_worth_it(now, then, rounds, move, worth):
    assert worth_moving(now, then, rounds, move) == worth


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_sorting_out_finds_everybody_in_order(shares):
    found = group_by_share(np.array(shares))
    assert sorted(found) == sorted(set(shares))
    for share, places in found.items():
        assert places.tolist() == [k for k, s in enumerate(shares) if s == share]
