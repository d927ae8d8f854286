"""Head, middle and tail."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.data.groups import class_groups


def test_ten_classes_are_feddiscos_groups():
    falling = [int(5000 * 10 ** (-k / 9)) for k in range(10)]
    assert class_groups(falling) == {"head": [0, 1, 2, 3], "middle": [4, 5, 6], "tail": [7, 8, 9]}
    assert class_groups(np.array(falling[::-1]))["tail"] == [2, 1, 0]


@given(st.lists(st.integers(0, 9), max_size=20))
def test_groups_are_even_and_ordered(counts):
    groups = class_groups(counts)
    head, middle, tail = groups.values()
    assert list(groups) == ["head", "middle", "tail"]
    together = head + middle + tail
    assert together == sorted(range(len(counts)), key=lambda k: (-counts[k], k))
    assert len(head) - 1 <= len(tail) <= len(middle) <= len(head)


@pytest.mark.parametrize(("classes", "sizes"), [(1, (1, 0, 0)), (2, (1, 1, 0)), (5, (2, 2, 1)), (100, (34, 33, 33))])
def test_the_first_groups_take_the_remainder(classes, sizes):
    assert tuple(map(len, class_groups([1] * classes).values())) == sizes
