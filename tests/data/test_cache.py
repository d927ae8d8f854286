"""The cache of decoded arrays: whole entries or none, made once, mapped and not read."""

import errno
import json
import os
import shutil
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from forks import FORKS

from fedbraid.data import cache as module
from fedbraid.data.cache import _only_one, decoded
from fedbraid.data.paths import cache_directory
from fedbraid.errors import UserError

VALUES = np.arange(12, dtype=np.uint8).reshape(3, 4)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBRAID_CACHE", str(tmp_path / "cache"))
    return cache_directory() / "decoded"


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "source"
    file.write_bytes(b"some bytes")
    return file


class Decoder:
    """Fills a writer, and counts how often it had to."""

    def __init__(self, values=VALUES):
        self.calls, self.values = 0, values

    def __call__(self, writer):
        self.calls += 1
        writer.put("values", self.values)
        writer.array("zeros", (2,), np.int64)
        return {"name": "é", "calls": self.calls}


def entries(cache):
    return [entry.name for entry in cache.iterdir() if not entry.name.endswith(".lock")]


def test_what_was_decoded_comes_back_without_decoding(cache, source):
    decode = Decoder()
    first, second = (decoded("set", [source], {"side": 8}, decode) for _ in range(2))
    assert decode.calls == 1
    for made in (first, second):
        assert np.array_equal(made.arrays["values"], VALUES)
        assert made.arrays["values"].dtype == np.uint8
        assert list(made.arrays["zeros"]) == [0, 0]
        assert made.facts == {"name": "é", "calls": 1}
    assert len(entries(cache)) == 1


def modes(*folders):
    """Who may look into folders and what is in them."""
    return {oct(path.stat().st_mode & 0o777) for folder in folders for path in (folder, *folder.rglob("*"))}


def test_nobody_else_can_read_what_is_kept(cache, source):
    cache.mkdir(0o755, parents=True)  # as earlier versions left it
    decoded("set", [source], {}, Decoder())
    assert modes(cache) == {"0o700", "0o600"}


def test_what_need_not_be_kept_is_not(cache, source):
    decode = Decoder()
    for _ in range(2):
        made = decoded("set", [source], {}, decode, keep=False)
        assert np.array_equal(made.arrays["values"], VALUES) and made.arrays["values"].flags.writeable
    assert decode.calls == 2 and made.facts == {"name": "é", "calls": 2} and not cache.exists()


def test_what_memory_is_not_taken_for_is_kept_all_the_same(cache, source, monkeypatch):
    monkeypatch.setattr(module, "MOST", 10)
    decode = Decoder()
    for _ in range(2):
        assert np.array_equal(decoded("set", [source], {}, decode, keep=False).arrays["values"], VALUES)
    assert len(entries(cache)) == 1


def test_arrays_are_mapped_writable_and_private(cache, source):
    first, second = (decoded("set", [source], {}, Decoder()).arrays["values"] for _ in range(2))
    assert isinstance(first, np.memmap)
    assert cache in type(cache)(first.filename).parents
    first[:] = 99
    assert np.array_equal(second, VALUES)
    assert np.array_equal(decoded("set", [source], {}, Decoder()).arrays["values"], VALUES)


def test_changed_sources_and_options_are_decoded_anew(cache, source):
    decode = Decoder()
    decoded("set", [source], {"side": 8}, decode)
    decoded("set", [source], {"side": 9}, decode)
    decoded("other", [source], {"side": 8}, decode)
    assert decode.calls == 3
    os.utime(source, ns=(0, 0))
    decoded("set", [source], {"side": 8}, decode)
    source.write_bytes(b"more bytes than before")
    os.utime(source, ns=(0, 0))
    decoded("set", [source], {"side": 8}, decode)
    assert decode.calls == 5
    moved = source.rename(source.with_name("moved"))
    decoded("set", [moved], {"side": 8}, decode)
    assert decode.calls == 6


def cut_array(entry):
    os.truncate(entry / "values.npy", 130)


def cut_header(entry):
    os.truncate(entry / "values.npy", 20)


def lose_array(entry):
    (entry / "zeros.npy").unlink()


def cut_facts(entry):
    (entry / "facts.json").write_text('{"arrays": ["val')


def strange_facts(entry):
    (entry / "facts.json").write_text("[1]")


def no_text(entry):
    (entry / "facts.json").write_bytes(b"\xff\xfe")


@pytest.mark.parametrize("damage", [cut_array, cut_header, lose_array, cut_facts, strange_facts, no_text])
def test_a_damaged_entry_is_made_anew(cache, source, damage):
    decode = Decoder()
    decoded("set", [source], {}, decode)
    damage(cache / entries(cache)[0])
    assert np.array_equal(decoded("set", [source], {}, decode).arrays["values"], VALUES)
    assert decode.calls == 2
    decoded("set", [source], {}, decode)
    assert decode.calls == 2


@pytest.mark.parametrize("mistake", [UserError("no good"), KeyboardInterrupt()])
def test_a_decoder_that_fails_leaves_nothing(cache, source, mistake):
    def fail(writer):
        writer.put("values", VALUES)
        raise mistake

    with pytest.raises(type(mistake)):
        decoded("set", [source], {}, fail)
    assert entries(cache) == []


def test_a_full_disk_is_refused_before_anything_is_decoded(cache, source, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10 << 30, 9 << 30, 1 << 30))
    with pytest.raises(UserError, match=r"needs 3.0 GiB in .* and 1.0 GiB are free; .*FEDBRAID_CACHE"):
        decoded("set", [source], {}, lambda writer: writer.array("large", (3 << 30,), np.uint8))
    assert entries(cache) == []


@pytest.mark.parametrize("length", [10**10, 10**30, 10**400])
def test_absurd_sizes_are_refused_as_too_large_for_the_disk(cache, source, length):
    gibibytes = f"{length * length * 8 // 2**30}"[:20]
    with pytest.raises(UserError, match=rf"\Adecoding needs {gibibytes}\d*\.\d GiB in .* GiB are free; [^\n]*\Z"):
        decoded("set", [source], {}, lambda writer: writer.array("large", (length, length), np.int64))


def test_sources_that_are_no_files_are_refused(cache, tmp_path):
    os.mkfifo(tmp_path / "z.png")
    for name in ("z.png", "."):
        with pytest.raises(UserError, match=r"is no regular file; data are read from files"):
            decoded("set", [tmp_path / name], {}, Decoder())


def test_names_may_be_any_bytes(cache, tmp_path):
    decode = Decoder()
    for name in (b"caf\xe9", b"caf\xe8"):
        try:
            (tmp_path / os.fsdecode(name)).write_bytes(b"")
        except OSError:
            pytest.skip("this file system takes no other names")
        os.utime(tmp_path / os.fsdecode(name), ns=(0, 0))
        decoded("set", [tmp_path / os.fsdecode(name)], {}, decode)
    assert decode.calls == 2


def test_a_disk_that_fills_meanwhile_is_a_sentence_and_no_crash(cache, source, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(UserError, match=r"cannot be kept in .*No space left on device.*FEDBRAID_CACHE"):
        decoded("set", [source], {}, Decoder())
    assert entries(cache) == []


def test_the_disks_blocks_are_taken_before_they_are_written(cache, source):
    held = []

    def decode(writer):
        writer.array("large", (1 << 20,), np.uint8)
        held.append(os.stat(writer.folder / "large.npy").st_blocks * 512)
        return {}

    decoded("set", [source], {}, decode)
    assert held[0] >= 1 << 20


def test_a_cache_that_cannot_be_written_to_is_a_sentence(tmp_path, source, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FEDBRAID_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot be kept in .*; .* FEDBRAID_CACHE"):
        decoded("set", [source], {}, Decoder())


def decode_slowly(cache, source):
    """Says `half` when it is, and waits for a file called `go`."""
    os.environ["FEDBRAID_CACHE"] = str(cache)

    def decode(writer):
        values = writer.array("values", (1000,), np.int64)
        values[:500] = 7
        source.with_name("half").touch()
        while not source.with_name("go").exists():
            time.sleep(0.01)
        values[500:] = 7
        return {}

    decoded("set", [source], {}, decode)


@pytest.fixture
def other_process(cache, source):
    """A process that has decoded half of the source."""
    process = FORKS.Process(target=decode_slowly, args=(os.environ["FEDBRAID_CACHE"], source))
    process.start()
    try:
        while not source.with_name("half").exists():
            assert process.is_alive()
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.join()


def test_a_killed_process_leaves_nothing_that_counts(cache, source, other_process):
    other_process.kill()
    other_process.join()
    assert all(name.startswith(".") for name in entries(cache))  # half an entry, under no name that is looked for
    decode = Decoder()
    assert np.array_equal(decoded("set", [source], {}, decode).arrays["values"], VALUES)
    assert decode.calls == 1
    assert len(entries(cache)) == 1  # the half has been cleared away


def test_any_decoding_clears_away_what_killed_processes_left(cache, source, other_process):
    other_process.kill()
    other_process.join()
    (cache / ".set-done.lock").touch()
    (left,) = entries(cache)
    assert left.endswith(".part")
    decoded("other", [source], {}, Decoder())
    assert [entry.name[:6] for entry in cache.iterdir()] == ["other-"]


def test_what_another_process_is_making_stays(cache, source, other_process):
    (begun,) = entries(cache)
    decoded("other", [source], {}, Decoder())
    assert begun in entries(cache)
    source.with_name("go").touch()
    other_process.join()
    assert other_process.exitcode == 0
    assert sorted(entry.name[:4] for entry in cache.iterdir()) == ["othe", "set-"]
    assert list(decoded("set", [source], {}, Decoder()).arrays["values"]) == [7] * 1000


def test_locks_that_their_holders_remove_still_let_in_one_at_a_time(cache):
    inside, most = [], []

    def enter(_):
        with _only_one(cache, "set"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.001)
            inside.pop()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, range(200)))
    assert most == [1] * 200
    assert list(cache.iterdir()) == []


def test_of_two_processes_one_decodes_and_both_have_it(cache, source, other_process):
    decode = Decoder()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(decoded, "set", [source], {}, decode)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.3)
        source.with_name("go").touch()
        assert list(waiting.result(timeout=60).arrays["values"]) == [7] * 1000
    other_process.join()
    assert other_process.exitcode == 0
    assert decode.calls == 0


def test_facts_are_plain_json(cache, source):
    decoded("set", [source], {}, Decoder())
    told = json.loads((cache / entries(cache)[0] / "facts.json").read_text(encoding="utf-8"))
    assert told == {"arrays": ["values", "zeros"], "facts": {"name": "é", "calls": 1}}
