"""A full disk ends a run with the file, the remedy and the result so far; with space again it goes on."""

import errno
import os
import sys
from pathlib import Path

import pytest
from safetensors import SafetensorError

import fedbraid as fb
from fedbraid.cli.app import main
from fedbraid.storage import files
from fedbraid.training.results import Run
from fedbraid.training.verification import verify_run

SMALL = {"rounds": 3, "partition": {"clients": 3}, "save": {"every": 2}, "engine": {"device": "cpu"}}
KEPT = ("model.safetensors", "inputs.json", "config.toml")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    place = tmp_path_factory.mktemp("whole") / "run"
    fb.run("scaffold", out=place, **SMALL)
    return place


def full_at(monkeypatch, turn, number=errno.ENOSPC):
    """Let the flush number `turn` and all after it fail as on a full disk; the number of flushes so far."""
    real, calls = os.fsync, []

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) > turn:
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return calls


def flushes(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        calls = full_at(patch, 10**9)
        fb.run("scaffold", out=tmp_path / "counted", **SMALL)
    return len(calls)


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_disk_that_fills_at_any_flush_names_the_file_and_the_run_goes_on(whole, tmp_path, monkeypatch, caplog, few):
    count = flushes(tmp_path, monkeypatch)
    assert count > 12
    for turn in (0, 4, count // 2, count - 2) if few else range(count):
        place = tmp_path / str(turn)
        caplog.clear()
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left") as full:
            full_at(patch, turn)
            fb.run("scaffold", out=place, **SMALL)
        assert Path(full.value.filename).is_relative_to(place) and not full.value.filename.endswith(".tmp")
        if (place / "rounds.jsonl").exists():
            assert "of 3 rounds are trained; accuracy 0." in caplog.text
        assert not list(place.rglob("*.tmp"))  # what was begun does not take up the space that is left
        fb.run("scaffold", out=place, resume=True, **SMALL)
        assert verify_run(place).verdict == "verified"
        for name in KEPT:
            assert (place / name).read_bytes() == (whole / name).read_bytes(), (turn, name)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux that is always full")
def test_a_line_of_the_log_that_finds_no_space_names_the_log(tmp_path, caplog):
    place, log = tmp_path / "run", tmp_path / "run" / "rounds.jsonl"

    def fill(line, config):
        if line["round"] == 2:
            log.rename(tmp_path / "before")
            log.symlink_to("/dev/full")

    with pytest.raises(OSError, match="No space left") as full:
        fb.run("scaffold", out=place, on_round=fill, **SMALL)
    assert full.value.filename == str(log)
    assert "scaffold, seed 0: 3 of 3 rounds are trained; accuracy 0." in caplog.text
    log.unlink()
    (tmp_path / "before").rename(log)
    assert len(fb.run("scaffold", out=place, resume=True, **SMALL).rounds) == 3


@pytest.fixture
def fedbraid(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedbraid", *words])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return call


ARGUMENTS = ("run", "scaffold", "--out", "d", "--set", "rounds=2", "--set", "partition.clients=3", "--device", "cpu")


def test_the_command_names_the_file_and_the_remedy(fedbraid, monkeypatch):
    monkeypatch.setattr(Run, "report", lambda self, directory: [])  # its pictures take seconds
    with monkeypatch.context() as patch:
        full_at(patch, 2)
        code, _, err = fedbraid(*ARGUMENTS)
    assert code == 2 and "Traceback" not in err
    assert "the disk is full, so d/" in err and "free some space" in err and "--resume" in err
    assert fedbraid(*ARGUMENTS, "--resume")[0] == 0


def test_the_result_is_printed_though_the_report_finds_no_space(fedbraid, monkeypatch):
    def report(self, directory):
        raise OSError(errno.ENOSPC, "No space left on device", f"{directory}/report.html")

    monkeypatch.setattr(Run, "report", report)
    code, out, err = fedbraid(*ARGUMENTS)
    assert code == 2 and "last accuracy" in out
    assert "the disk is full, so d/report.html cannot be written" in err


def test_safetensors_says_a_full_disk_in_words(tmp_path, monkeypatch):
    said = SafetensorError(f"Error while serializing: I/O error: No space left on device (os error {errno.ENOSPC})")

    def save_file(tensors, file):
        raise said

    monkeypatch.setattr(files, "save_file", save_file)
    with pytest.raises(OSError, match="No space left") as full:
        files.save_tensors(tmp_path / "model.safetensors", {})
    assert files.is_full(full.value) and full.value.filename == str(tmp_path / "model.safetensors")
    said = SafetensorError("invalid header")
    with pytest.raises(SafetensorError, match="invalid header"):
        files.save_tensors(tmp_path / "model.safetensors", {})
