"""Clients' states: made when first needed, saved in pieces, whole after any crash."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbraid.store import ClientStore


def blank():
    return {"a": {"c": torch.zeros(3), "n": torch.tensor(1.0)}, "empty": {}}


def states(*values):
    """What some clients keep, each filled with its own value."""
    numbers = torch.tensor(values, dtype=torch.float32)
    return {"a": {"c": numbers[:, None].expand(-1, 3), "n": numbers}}


def value(store, client):
    got = store.read([client])["a"]
    assert got["c"].shape == (1, 3) and got["n"].shape == (1,)
    assert (got["c"] == got["n"]).all() or got["n"] == 1
    return float(got["c"][0, 0])


@pytest.fixture(params=[False, True], ids=["in memory", "on disk"])
def store(request, tmp_path):
    return ClientStore(blank(), tmp_path, on_disk=request.param)


def saved(store, segment):
    index = store.save(segment)
    store.commit(index)
    return index


def reopened(store, index):
    other = ClientStore(blank(), store.directory, on_disk=store.on_disk)
    other.restore(index)
    return other


def test_states_are_made_when_they_are_first_written(store):
    assert len(store) == 0
    assert value(store, 10**9) == 0.0
    assert len(store) == 0
    store.write([4, 2], states(7, 8))
    assert len(store) == 2
    assert [value(store, k) for k in (2, 3, 4)] == [8, 0, 7]


def test_without_state_there_is_nothing_to_keep():
    store = ClientStore({"a": {}})
    assert store.read([1, 2]) == {}
    assert ClientStore({}, on_disk=True).on_disk is False


def test_what_is_kept_is_a_copy(store):
    kept = states(5.0)
    kept["a"]["n"] = kept["a"]["n"].clone()
    store.write([0], kept)
    kept["a"]["n"].fill_(9)
    assert value(store, 0) == 5
    assert store._rows[0]["a"]["c"].untyped_storage().nbytes() == 3 * 4, "a view would keep the whole cohort alive"


def test_read_keeps_the_order_asked_for(store):
    store.write([1, 2, 3], states(10, 20, 30))
    assert store.read([3, 1, 9, 2])["a"]["c"][:, 0].tolist() == [30, 10, 0, 20]


def test_a_checkpoint_is_read_back(store):
    store.write([1, 5], states(10, 50))
    index = saved(store, "one")
    assert index == {1: "one", 5: "one"}
    other = reopened(store, index)
    assert [value(other, k) for k in (1, 5, 6)] == [10, 50, 0]
    assert len(other) == 2


def test_a_checkpoint_holds_what_changed_and_nothing_else(store):
    store.write(range(6), states(*range(6)))
    saved(store, "one")
    store.write([2], states(22))
    index = saved(store, "two")
    assert index == {0: "one", 1: "one", 2: "two", 3: "one", 4: "one", 5: "one"}
    assert saved(store, "three") == index
    assert not (store.directory / "three").exists()
    assert [value(reopened(store, index), k) for k in range(6)] == [0, 1, 22, 3, 4, 5]


def test_what_is_left_of_a_segment_moves_with_those_who_leave_it(store):
    store.write(range(4), states(0, 1, 2, 3))
    saved(store, "one")
    store.write([0, 1, 2], states(10, 11, 12))
    assert saved(store, "two") == dict.fromkeys(range(4), "two")
    assert [p.name for p in store.directory.iterdir()] == ["two"]
    assert [value(store, k) for k in range(4)] == [10, 11, 12, 3]


def test_segments_that_are_mostly_out_of_date_are_folded_into_the_next(store):
    store.write(range(4), states(0, 1, 2, 3))
    saved(store, "one")
    store.write([0, 1], states(10, 11))
    assert set(saved(store, "two").values()) == {"one", "two"}, "half is not yet mostly"
    store.write([2], states(12))
    index = saved(store, "three")
    assert index == {0: "two", 1: "two", 2: "three", 3: "three"}
    assert sorted(p.name for p in store.directory.iterdir()) == ["three", "two"]
    assert [value(reopened(store, index), k) for k in range(4)] == [10, 11, 12, 3]


def test_on_disk_nothing_stays_in_memory_after_a_checkpoint(tmp_path):
    store = ClientStore(blank(), tmp_path, on_disk=True)
    store.write(range(50), states(*range(50)))
    saved(store, "one")
    assert [value(store, k) for k in range(50)] == list(range(50))
    assert not store._rows


def test_a_crash_between_save_and_commit_leaves_the_old_checkpoint_readable(store):
    store.write([0, 1, 2], states(0, 1, 2))
    old = saved(store, "one")
    store.write([0, 1, 2], states(10, 11, 12))
    store.save("two")
    survivor = reopened(store, old)
    assert [value(survivor, k) for k in range(3)] == [0, 1, 2]
    assert [value(store, k) for k in range(3)] == [10, 11, 12]


def test_restoring_forgets_what_was_not_saved(store):
    store.write([0], states(1))
    index = saved(store, "one")
    store.write([0, 7], states(2, 3))
    store.restore(index)
    assert [value(store, 0), value(store, 7), len(store)] == [1, 0, 1]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(st.integers(0, 8), unique=True, min_size=1)),
        st.tuples(st.just("save"), st.booleans()),
        st.tuples(st.just("crash"), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=40)
@given(OPERATIONS, st.booleans())
def test_the_store_is_a_dictionary_that_goes_back_to_its_last_commit(tmp_path_factory, operations, on_disk):
    store = ClientStore(blank(), tmp_path_factory.mktemp("store"), on_disk=on_disk)
    now: dict[int, float] = {}
    durable: dict[int, float] = {}
    index: dict[int, str] = {}
    for number, (operation, argument) in enumerate(operations, start=1):
        if operation == "write":
            store.write(argument, states(*(number + k / 16 for k in argument)))
            now |= {k: number + k / 16 for k in argument}
        elif operation == "save":
            new = store.save(f"segment-{number}")
            if argument:  # otherwise the crash comes before the commit
                store.commit(new)
                index, durable = new, dict(now)
        else:
            store, now = reopened(store, index), dict(durable)
        assert [value(store, k) for k in range(9)] == [now.get(k, 0.0) for k in range(9)]
        assert len(store) == len(now)
    assert {p.name for p in store.directory.iterdir()} >= set(index.values())
