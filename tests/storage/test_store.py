"""Clients' states: made when first needed, saved in pieces, whole after any crash."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from fedbraid.core.tree import grow
from fedbraid.errors import UserError
from fedbraid.storage.client_store import ClientStore
from fedbraid.storage.files import save_rows


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
    segments = store.save(segment)
    store.commit(segments)
    return segments


def reopened(store, segments):
    other = ClientStore(blank(), store.directory, on_disk=store.on_disk)
    other.restore(segments)
    return other


def held(store, segments):
    """Which of `segments` holds each client's newest state, as read from the files."""
    files = {name: load_file(store.directory / name)["clients"].tolist() for name in segments}
    return {client: name for name, clients in files.items() for client in clients}


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
    segments = saved(store, "one")
    assert segments == ["one"]
    other = reopened(store, segments)
    assert [value(other, k) for k in (1, 5, 6)] == [10, 50, 0]
    assert len(other) == 2


def test_a_checkpoint_holds_what_changed_and_nothing_else(store):
    store.write(range(6), states(*range(6)))
    saved(store, "one")
    store.write([2], states(22))
    segments = saved(store, "two")
    assert held(store, ["two"]) == {2: "two"}
    assert held(store, segments) == {0: "one", 1: "one", 2: "two", 3: "one", 4: "one", 5: "one"}
    assert saved(store, "three") == segments == ["one", "two"]
    assert not (store.directory / "three").exists()
    assert [value(reopened(store, segments), k) for k in range(6)] == [0, 1, 22, 3, 4, 5]


def test_what_is_left_of_a_segment_moves_with_those_who_leave_it(store):
    store.write(range(4), states(0, 1, 2, 3))
    saved(store, "one")
    store.write([0, 1, 2], states(10, 11, 12))
    assert held(store, saved(store, "two")) == dict.fromkeys(range(4), "two")
    assert [p.name for p in store.directory.iterdir()] == ["two"]
    assert [value(store, k) for k in range(4)] == [10, 11, 12, 3]


def test_segments_that_are_mostly_out_of_date_are_folded_into_the_next(store):
    store.write(range(4), states(0, 1, 2, 3))
    saved(store, "one")
    store.write([0, 1], states(10, 11))
    assert saved(store, "two") == ["one", "two"], "half is not yet mostly"
    store.write([2], states(12))
    segments = saved(store, "three")
    assert held(store, segments) == {0: "two", 1: "two", 2: "three", 3: "three"}
    assert sorted(p.name for p in store.directory.iterdir()) == ["three", "two"]
    assert [value(reopened(store, segments), k) for k in range(4)] == [10, 11, 12, 3]


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
    segments = saved(store, "one")
    store.write([0, 7], states(2, 3))
    store.restore(segments)
    assert [value(store, 0), value(store, 7), len(store)] == [1, 0, 1]


def test_segments_stay_few_and_states_move_seldom(tmp_path, monkeypatch):
    """Ten clients a checkpoint, never the same: one segment each would be three hundred."""
    moved = []
    monkeypatch.setattr(
        "fedbraid.storage.client_store.save_rows", lambda *args: (moved.append(args[2]), save_rows(*args))
    )
    store = ClientStore(blank(), tmp_path, on_disk=True)
    most = 0
    for number in range(300):
        ids = range(10 * number, 10 * number + 10)
        store.write(ids, states(*ids))
        most = max(most, len(saved(store, f"segment-{number:03d}")))
    assert most <= 24
    assert sum(moved) <= 3000 * 5
    assert len(list(tmp_path.iterdir())) == len(store.segments)
    other = reopened(store, list(store.segments))
    assert len(other) == 3000
    assert other.read(range(3000))["a"]["c"][:, 0].tolist() == list(range(3000))


def test_unsaved_states_beyond_a_limit_go_to_disk_before_the_checkpoint(tmp_path):
    store = ClientStore(blank(), tmp_path, on_disk=True, unsaved=3 * 16)
    store.write([0, 1, 2], states(0, 1, 2))
    assert len(store._rows) == 3 and not list(tmp_path.iterdir())
    store.write([3, 1], states(3, 11))
    assert not store._rows
    assert [value(store, k) for k in range(5)] == [0, 11, 2, 3, 0]
    store.write([0, 4, 5, 6], states(10, 14, 15, 16))
    segments = saved(store, "one")
    assert [value(reopened(store, segments), k) for k in range(7)] == [10, 11, 2, 3, 14, 15, 16]
    assert {p.name for p in tmp_path.iterdir()} == set(segments)


def test_states_are_moved_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("fedbraid.storage.client_store.BLOCK", 3 * 16)
    store = ClientStore(blank(), tmp_path)
    store.write(range(10), states(*range(10)))
    assert [value(reopened(store, saved(store, "one")), k) for k in range(10)] == list(range(10))


def test_states_of_any_numbers_come_back_as_they_were(tmp_path):
    blank = {
        "b": {"odd": torch.zeros(3, dtype=torch.bool), "half": torch.zeros((), dtype=torch.bfloat16)},
        "a": {"wide": torch.zeros(2, 2, dtype=torch.float64), "n": torch.zeros(1, dtype=torch.int64)},
        "none": {"empty": torch.zeros(0)},
    }
    generator = torch.Generator().manual_seed(0)
    many = grow(blank, lambda t: torch.randint(0, 2, (5, *t.shape), generator=generator).to(t.dtype))
    store = ClientStore(blank, tmp_path, on_disk=True)
    store.write(range(5), many)
    saved(store, "one")
    assert not store._rows
    content = (tmp_path / "one").read_bytes()
    first = 8 + int.from_bytes(content[:8], "little")
    for told in json.loads(content[8:first]).values():
        begin, end = told["data_offsets"]
        item = (end - begin) // max(1, math.prod(told["shape"]))
        assert (first + begin) % max(1, item) == 0, "whoever maps the file into memory wants numbers at their places"
    back = store.read([4, 0, 9])
    for strand, tree in blank.items():
        for name, like in tree.items():
            want = torch.stack([many[strand][name][4], many[strand][name][0], like])
            assert torch.equal(back[strand][name], want) and back[strand][name].dtype == like.dtype


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(st.integers(0, 8), unique=True, min_size=1)),
        st.tuples(st.just("save"), st.booleans()),
        st.tuples(st.just("crash"), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=40)
@given(OPERATIONS, st.booleans(), st.sampled_from([1, 50, 10**9]))
def test_the_store_is_a_dictionary_that_goes_back_to_its_last_commit(tmp_path_factory, operations, on_disk, unsaved):
    store = ClientStore(blank(), tmp_path_factory.mktemp("store"), on_disk=on_disk, unsaved=unsaved)
    now: dict[int, float] = {}
    durable: dict[int, float] = {}
    segments: list[str] = []
    for number, (operation, argument) in enumerate(operations, start=1):
        if operation == "write":
            store.write(argument, states(*(number + k / 16 for k in argument)))
            now |= {k: number + k / 16 for k in argument}
        elif operation == "save":
            new = store.save(f"segment-{number}")
            if argument:  # otherwise the crash comes before the commit
                store.commit(new)
                segments, durable = new, dict(now)
        else:
            store, now = reopened(store, segments), dict(durable)
        assert [value(store, k) for k in range(9)] == [now.get(k, 0.0) for k in range(9)]
        assert len(store) == len(now)
        assert {p.name for p in store.directory.iterdir()} >= set(segments)
        assert [value(reopened(store, segments), k) for k in range(9)] == [durable.get(k, 0.0) for k in range(9)]


# --- several stores in one folder


def test_a_store_of_some_clients_knows_of_no_others(store):
    store.write([1, 2, 3], states(1.0, 2.0, 3.0))
    first = saved(store, "one.safetensors")
    store.write([3], states(4.0))
    segments = saved(store, "two.safetensors")
    assert segments == [*first, "two.safetensors"]
    other = ClientStore(blank(), store.directory, on_disk=store.on_disk)
    other.restore(segments, {2, 9})
    assert len(other) == 1 and list(other.segments) == first
    assert [value(other, k) for k in (2, 3, 9)] == [2.0, 0.0, 0.0]


def test_what_is_forgotten_stays_in_its_file(tmp_path):
    store = ClientStore(blank(), tmp_path)
    store.write([1, 2], states(1.0, 2.0))
    (old,) = store.save("one.safetensors")
    store.write([1, 2], states(3.0, 4.0))
    segments = store.save("two.safetensors")
    assert store.forget(segments) == {old} and list(store.segments) == ["two.safetensors"]
    assert (tmp_path / old).exists()


def test_stores_with_marks_write_early_to_files_of_their_own_and_never_to_the_same_one(tmp_path):
    one, other = (ClientStore(blank(), tmp_path, on_disk=True, unsaved=20, mark=mark) for mark in ("a-", "b-"))
    for _ in range(3):
        for client, store in enumerate((one, other)):
            store.write([10 * client, 10 * client + 1], states(1.0, 2.0))
            store.forget([name for name, segment in store.segments.items() if segment.live])
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {f"clients-early-{mark}-{k}.safetensors" for mark in "ab" for k in range(3)}


def test_a_state_that_changed_on_disk_is_found_when_it_is_read(tmp_path):
    """Of any kind of number, and also where it is the client's own number that changed."""
    kinds = torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool
    like = {"a": {str(kind): torch.zeros(2, 3, dtype=kind) for kind in kinds} | {"none": torch.zeros(0)}}
    store = ClientStore(like, tmp_path)
    store.write([3, 5], grow(like, lambda t: torch.ones(2, *t.shape, dtype=t.dtype)))
    (name,) = store.save("first.safetensors")
    file, found = tmp_path / name, []
    whole = file.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    for at in range(begin, len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(UserError, match=r"first.safetensors is damaged"):
            other = ClientStore(like, tmp_path)
            other.restore([name])
            found.append(at)
            other.read([3, 5])
    assert 0 < len(found) < len(whole) - begin, "some when it is opened, others when a state is read"
