"""Streams: the same name gives the same numbers, another name gives others."""

import itertools
from zlib import crc32

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.core.random import SERVER, stream

SEEDS, ROUNDS, CLIENTS = st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1), st.integers(0, SERVER)


@given(SEEDS, st.text(max_size=20), ROUNDS, CLIENTS)
def test_a_stream_depends_on_its_name_alone(seed, purpose, round, client):
    first = stream(seed, purpose, round=round, client=client)
    drawn = first.random(7)
    stream(seed, "something else").random(100)
    assert np.array_equal(drawn, stream(seed, purpose, round=round, client=client).random(7))
    assert not np.array_equal(drawn, first.random(7))


def test_streams_that_differ_in_one_thing_are_different():
    base = {"seed": 3, "purpose": "local", "round": 5, "client": 7}
    changes = [{}, {"seed": 4}, {"purpose": "local/mix"}, {"round": 6}, {"client": 8}, {"round": 7, "client": 5}]
    drawn = [tuple(stream(**base | change).integers(0, 2**62, 4)) for change in changes]
    assert len(set(drawn)) == len(changes)


def test_streams_next_to_each_other_are_independent():
    """Correlations between the streams of neighbouring clients and rounds are those of chance."""
    rows = [stream(0, "local", round=t, client=k).random(2000) for t in range(6) for k in range(6)]
    for a, b in itertools.combinations(rows, 2):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.11  # five standard deviations
    assert abs(np.mean(rows) - 0.5) < 0.01


def test_the_servers_stream_is_no_clients():
    assert stream(0, "x").random() == stream(0, "x", client=SERVER).random()
    assert stream(0, "x").random() != stream(0, "x", client=0).random()


@given(seed=st.integers(0, 2**64 - 1), round=st.integers(0, 2**31), client=st.integers(0, 2**32 - 1))
def test_a_stream_is_philox_with_its_key_and_its_place(seed, round, client):
    key = np.array([seed, (round << 32) | client], dtype=np.uint64)
    counter = np.array([0, 0, 0, crc32(b"local")], dtype=np.uint64)
    plain = np.random.Generator(np.random.Philox(key=key, counter=counter))
    ours = stream(seed, "local", round=round, client=client)
    for draw in (lambda g: g.random(5), lambda g: g.integers(0, 7, 3, dtype=np.int32), lambda g: g.permutation(9)):
        np.testing.assert_array_equal(draw(ours), draw(plain))
