"""Where data sets are looked for, and what is said when they are not there."""

from pathlib import Path

import pytest

from fedbraid.data.paths import FileLayout, cache_directory, data_directory, find
from fedbraid.errors import UserError

PLAIN = FileLayout(("plain", "deep/plain"), ("train.csv|train.csv.gz", "test-*.csv"))
PACKED = FileLayout(("packed",), ("all.bin",))


def lay(root, *files):
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_the_first_complete_layout_is_found(tmp_path):
    lay(tmp_path, "packed/all.bin", "plain/train.csv")
    assert find("set", tmp_path, (PLAIN, PACKED)).layout is PACKED
    lay(tmp_path, "deep/plain/train.csv.gz", "deep/plain/test-b.csv", "deep/plain/test-a.csv")
    found = find("set", tmp_path, (PLAIN, PACKED))
    assert found.layout is PLAIN
    assert found.folder == tmp_path / "deep/plain"
    assert [file.name for file in found.files] == ["train.csv.gz", "test-a.csv"]
    lay(tmp_path, "plain/test-c.csv", "plain/train.csv.gz")
    assert [file.name for file in find("set", str(tmp_path), (PLAIN,)).files] == ["train.csv", "test-c.csv"]


def test_a_missing_set_is_told_with_what_would_do(tmp_path):
    with pytest.raises(UserError) as told:
        find("set", tmp_path, (PLAIN, PACKED))
    assert str(told.value) == (
        f"data set 'set' is not in {tmp_path}: it needs plain/ with train.csv, test-*.csv; or packed/ with all.bin. "
        "--data-dir or FEDBRAID_DATA names another directory"
    )
    with pytest.raises(UserError) as told:
        find("set", tmp_path, (PACKED, FileLayout(("set/hub",), ("*.parquet",))))
    assert str(told.value) == (
        f"data set 'set' is not in {tmp_path}: it needs packed/ with all.bin. "
        "`fedbraid data get set` fetches it where there is a network; "
        "--data-dir or FEDBRAID_DATA names another directory"
    )
    with pytest.raises(UserError, match=r"is not in .*nowhere, which is no directory: it needs packed/"):
        find("set", tmp_path / "nowhere", (PACKED,))


def test_the_directory_is_the_one_given_or_the_environments_or_the_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("FEDBRAID_DATA", "~/sets")
    assert data_directory(tmp_path) == tmp_path
    assert data_directory("~/mine") == Path("/home/ann/mine")
    assert data_directory() == Path("/home/ann/sets")
    monkeypatch.delenv("FEDBRAID_DATA")
    monkeypatch.setenv("FEDBRAID_CACHE", "~/kept")
    assert data_directory() == Path("/home/ann/kept/data")
    monkeypatch.delenv("FEDBRAID_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/ann")
    assert cache_directory() == Path("/var/cache/ann/fedbraid")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path("/home/ann/.cache/fedbraid")
