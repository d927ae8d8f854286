"""Who takes part: the right number, nobody twice, by seed and round alone."""

from collections import Counter
from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.core.sampling import bernoulli, by_size, fixed

KEYS = st.fixed_dictionaries({"seed": st.integers(0, 2**40), "round": st.integers(0, 10_000)})


@given(st.integers(1, 200), st.data(), KEYS)
def test_fixed_takes_so_many_without_replacement_in_order(population, data, key):
    clients = data.draw(st.integers(1, population))
    ids = fixed(population, clients, **key)
    assert len(ids) == clients
    assert (np.diff(ids) > 0).all() and ids[0] >= 0 and ids[-1] < population
    assert np.array_equal(ids, fixed(population, clients, **key))


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=100), st.data(), KEYS)
def test_by_size_takes_so_many_without_replacement_in_order(sizes, data, key):
    clients = data.draw(st.integers(1, len(sizes)))
    ids = by_size(np.array(sizes), clients, **key)
    assert len(ids) == clients
    assert (np.diff(ids) > 0).all() and ids[0] >= 0 and ids[-1] < len(sizes)
    assert np.array_equal(ids, by_size(np.array(sizes), clients, **key))


def test_by_size_draws_one_after_the_other_by_what_is_left():
    sizes, draws = np.array([1, 2, 5, 12]), 6000
    seen = Counter(tuple(by_size(sizes, 2, seed=1, round=t).tolist()) for t in range(draws))
    share = sizes / sizes.sum()
    for a, b in combinations(range(4), 2):
        expected = share[a] * share[b] / (1 - share[a]) + share[b] * share[a] / (1 - share[b])
        assert abs(seen[a, b] / draws - expected) < 4 * (expected * (1 - expected) / draws) ** 0.5


@given(st.integers(1, 200), st.floats(0.005, 1.0), KEYS)
def test_bernoulli_takes_at_least_one_in_order(population, rate, key):
    ids = bernoulli(population, rate, **key)
    assert len(ids) >= 1
    assert (np.diff(ids) > 0).all() and ids[0] >= 0 and ids[-1] < population
    assert np.array_equal(ids, bernoulli(population, rate, **key))


def test_everybody_comes_as_often_as_anybody():
    often = np.zeros(20)
    for t in range(2000):
        often[fixed(20, 5, seed=0, round=t)] += 1
    assert abs(often - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75)
    numbers = [len(bernoulli(20, 0.3, seed=0, round=t)) for t in range(2000)]
    assert abs(np.mean(numbers) - 6) < 5 * np.sqrt(20 * 0.3 * 0.7 / 2000)


def test_rounds_and_seeds_differ():
    draws = [fixed(1000, 10, seed=s, round=t) for s in range(3) for t in range(3)]
    draws += [bernoulli(1000, 0.01, seed=s, round=t) for s in range(3) for t in range(3)]
    assert len({ids.tobytes() for ids in draws[:9]}) == len({ids.tobytes() for ids in draws[9:]}) == 9


def test_bernoulli_has_the_law_of_drawing_again_while_nobody_comes():
    rate, draws = 0.15, 30_000
    seen = Counter(tuple(bernoulli(4, rate, seed=1, round=t).tolist()) for t in range(draws))
    somebody = 1 - (1 - rate) ** 4
    for size in range(1, 5):
        for who in combinations(range(4), size):
            expected = draws * rate**size * (1 - rate) ** (4 - size) / somebody
            assert abs(seen[who] - expected) < 5 * np.sqrt(expected) + 3, who


@given(st.integers(1, 1000), st.sampled_from([1e-300, 1e-17, 1e-12, 1e-6]), KEYS)
def test_tiny_rates_end(population, rate, key):
    ids = bernoulli(population, rate, **key)
    assert len(ids) == 1 or rate == 1e-6
    assert 0 <= ids[0] < population


def test_of_very_rare_clients_any_may_come():
    first = [int(bernoulli(10, 1e-12, seed=0, round=t)[0]) for t in range(3000)]
    assert abs(np.bincount(first, minlength=10) - 300).max() < 5 * np.sqrt(300)
    assert bernoulli(10, 1.0, seed=0, round=0).tolist() == list(range(10))
