"""Lists are kept between calls, and made anew when they might be wrong."""

import json

import pytest

from fedbraid.cli import listings


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBRAID_CACHE", str(tmp_path))
    return tmp_path / "lists"


def test_a_list_is_made_once(cache):
    made = []

    def make():
        made.append(1)
        return {"values": (1, "two", None)}

    assert [listings.cached_list("some", make) for _ in range(3)] == [{"values": [1, "two", None]}] * 3
    assert len(made) == 1


def test_a_changed_package_makes_it_anew(cache, monkeypatch):
    assert listings.cached_list("some", lambda: 1) == 1
    monkeypatch.setattr(listings, "_package_state", lambda: "another")
    assert listings.cached_list("some", lambda: 2) == 2


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"key": 1}', "\x00"])
def test_a_damaged_cache_costs_nothing_but_time(cache, damage):
    listings.cached_list("some", lambda: 1)
    (cache / "some.json").write_text(damage)
    assert listings.cached_list("some", lambda: 2) == 2
    assert json.loads((cache / "some.json").read_text())["value"] == 2


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDBRAID_CACHE", str(tmp_path / "file"))
    assert listings.cached_list("some", lambda: 1) == 1
