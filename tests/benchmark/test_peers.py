"""The comparison with peers, as far as it goes without their packages."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "peers.py"


def peers(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_times_of_those_that_need_no_environment_and_the_reason_why_another_is_missing(tmp_path: Path) -> None:
    out, empty = tmp_path / "found.json", tmp_path / "site"
    empty.mkdir()
    chosen = ["--only", "lenet", "--contenders", "fedbraid,usual,tight,pfl", "--site", str(empty)]
    done = peers("--small", *chosen, "--repeats", "1", "--busy", "99", "--json", str(out))
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert {"command", "machine", "settings", "versions", "sgemm", "rows", "left_out"} == found.keys()
    (missing,) = found["left_out"]
    assert missing["contender"] == "pfl"
    assert "No module named 'pfl'" in missing["reason"]
    assert "left out: pfl" in done.stdout
    rows = {row["contender"]: row for row in found["rows"]}
    assert rows.keys() == {"fedbraid", "usual", "tight"}
    for row in rows.values():
        assert row["work"] == "lenet"
        assert row["kept"] == 1
        assert row["samples_per_s"] * row["seconds_a_round"] == pytest.approx(3 * 8 * 2)  # clients, samples, epochs
        assert row["fedbraid_over"] == pytest.approx(rows["fedbraid"]["samples_per_s"] / row["samples_per_s"])
        assert row["start_s"] > 0
        assert row["memory_mb"] > 1
        assert 0 < row["share_of_peak"] < 1


@pytest.mark.slow
def test_fedbraid_and_the_usual_loop_arrive_at_the_model_of_the_reference(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    chosen = ["--only", "synthetic-logistic", "--contenders", "fedbraid,usual"]
    done = peers("--check", "--small", *chosen, "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())["check"]
    assert [one["contender"] for one in found] == ["fedbraid", "usual"]
    assert all(one["agrees"] and one["largest"] < 1e-6 < 1e-3 < one["movement"] for one in found)


@pytest.mark.slow
def test_the_overhead_of_a_round_is_less_than_the_round(tmp_path: Path) -> None:
    out, script = tmp_path / "found.json", SCRIPT.with_name("overhead.py")
    options = ["--small", "--only", "lenet", "--rounds", "3", "--busy", "99", "--json", str(out)]
    done = subprocess.run([sys.executable, str(script), *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rounds = json.loads(out.read_text())["lenet"]
    assert len(rounds) == 3
    for one in rounds:
        assert 0 < one["overhead"] < one["wall"]
        assert 0 < one["batches"] < one["clients"] < one["wall"]
        assert one["cpu"] > 0
