"""Samples kept for testing."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.core.random import stream
from fedbraid.data.held_out import held_out


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.floats(0.01, 0.99), st.integers(0, 9))
def test_every_group_gives_its_share_and_keeps_one(groups, share, seed):
    groups = np.array(groups)
    is_test = held_out(groups, share, stream(seed, "test"))
    assert is_test.dtype == bool
    for group in np.unique(groups):
        size = int((groups == group).sum())
        assert is_test[groups == group].sum() == min(round(share * size), size - 1)
    assert np.array_equal(is_test, held_out(groups, share, stream(seed, "test")))


def test_every_sample_is_as_likely_as_its_neighbour():
    groups = np.repeat([3, 1], [10, 30])
    often = np.mean([held_out(groups, 0.2, stream(seed, "test")) for seed in range(2000)], axis=0)
    # 2000 draws of probability 0.2 have a deviation of 0.009.
    assert abs(often - 0.2).max() < 0.04
