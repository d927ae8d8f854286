"""Means and deviations of channels, whatever parts they are measured in."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedbraid.data.datasets import normal
from fedbraid.data.datasets.normal import measured


@given(arrays.arrays("u1", arrays.array_shapes(min_dims=2, max_dims=4, max_side=5)), st.sampled_from([1, 2, 3, 7, 40]))
def test_parts_are_small_and_give_what_the_whole_gives(x, at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normal, "AT_ONCE", at_once)
        made = measured(x)
        blocks = [block for _, block in normal._blocks(x.reshape(*x.shape[:2], -1))]
    assert max(block.size for block in blocks) <= at_once
    axes = (0, *range(2, x.ndim))
    std = x.std(axes)
    assert made.mean == pytest.approx(x.mean(axes))
    assert made.std == pytest.approx(np.where(std > 0, std, 1.0))


def test_large_values_that_hardly_differ_keep_their_digits():
    assert measured(np.array([[1e9], [1e9 + 2]])).std == (1.0,)


@pytest.mark.parametrize("shape", [(1, 3, 4000, 4000), (1, 48_000_000)])
def test_one_large_sample_is_not_copied_whole(shape):
    x = np.zeros(shape, np.uint8)
    x.flat[0] = 1
    tracemalloc.start()
    try:
        total = sum(float(block.sum()) for _, block in normal._blocks(x.reshape(*x.shape[:2], -1)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 1
    assert peak < 100 << 20
