"""What captures of CUDA graphs need that a CPU can show."""

import gc

import pytest

from fedbraid.engines.graph import uncollected


class Node:
    freed = 0

    def __init__(self):
        self.itself = self

    def __del__(self):
        Node.freed += 1


def test_nothing_is_collected_within():
    before = gc.get_threshold()
    gc.collect()
    Node.freed = 0
    try:
        gc.set_threshold(1)
        with uncollected():
            for _ in range(100):
                Node()
            assert Node.freed == 0
        for _ in range(100):
            Node()
        assert Node.freed > 0
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_is_left_as_it_was_whatever_happens(collects):
    (gc.enable if collects else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError), uncollected():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() is collects
    finally:
        gc.enable()
