"""Comparisons whose runs train together: recorded, killed, resumed and shown as if each went by itself."""

import io
import json
import logging
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from forks import FORKS
from joined import stacks
from recorded import compared, left_on_disk
from rich.console import Console

import fedbraid as fb
from fedbraid.cli import run_views as cli_show
from fedbraid.cli.app import main
from fedbraid.config.schema import Config
from fedbraid.training.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("not_rendered")
METHODS = ("scaffold+prox(mu=0.1)", "fedavg", "scaffold+prox(mu=1.0)")


def timeless(run):
    return [{key: value for key, value in line.items() if key != "seconds"} for line in run.rounds]


def alike(one, other):
    """The same numbers, to rounding where they are rounded."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == pytest.approx(other, rel=1e-9, abs=1e-9) if isinstance(one, float) else one == other


def on_disk(place):
    """What all runs of a comparison left, the models as numbers."""
    found = sorted(place.glob("*/seed-*"))
    assert len(found) == 6
    left = {str(run.relative_to(place)): left_on_disk(run) for run in found}
    for one in left.values():
        one.pop("model")  # the same numbers as the server's, as bytes
    return left


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted comparison of six runs in two stacks."""
    place = tmp_path_factory.mktemp("whole")
    with stacks() as sizes:
        comparison = compared(place, METHODS)
    assert sizes == [4 * 3] * 8 + [2 * 3] * 8
    return comparison, on_disk(place)


def test_a_comparison_is_what_its_runs_are_alone(whole, tmp_path):
    comparison, left = whole
    with stacks() as sizes:
        separate = compared(tmp_path, METHODS, together=False)
    assert sizes == [3] * 6 * 8
    assert alike(left, on_disk(tmp_path))
    assert separate.labels == comparison.labels == [m for m in METHODS for _ in range(2)]
    assert [run.config.seed for run in comparison.runs] == [0, 1] * 3
    for one, other in zip(comparison.runs, separate.runs, strict=True):
        assert one.config == other.config
        assert alike(timeless(one), timeless(other))
        assert one.label_counts == other.label_counts


def test_every_round_of_every_run_is_told(tmp_path):
    seen = []
    compared(tmp_path, METHODS, on_round=lambda line, config: seen.append((config.method, config.seed, line["round"])))
    assert sorted(seen) == sorted((m, seed, r) for m in METHODS for seed in (0, 1) for r in range(1, 9))
    assert seen[:4] == [(m, seed, 1) for m in (METHODS[0], METHODS[2]) for seed in (0, 1)], "in lock step"


def test_finished_half_done_and_not_begun_runs_are_continued(whole, tmp_path):
    class Stop(Exception):
        pass

    def stop(line, config):
        if (config.method, config.seed, line["round"]) == (METHODS[2], 0, 5):
            raise Stop

    with pytest.raises(Stop):
        compared(tmp_path, METHODS, on_round=stop)
    compared(tmp_path, METHODS[:1], seeds=1)  # one of the four is finished alone
    assert not (tmp_path / "fedavg").exists()
    rounds = {}
    compared(tmp_path, METHODS, on_round=lambda line, c: rounds.setdefault((c.method, c.seed), line["round"]))
    assert (METHODS[0], 0) not in rounds
    assert rounds == {(METHODS[0], 1): 5, (METHODS[2], 0): 5, (METHODS[2], 1): 5, ("fedavg", 0): 1, ("fedavg", 1): 1}
    assert alike(on_disk(tmp_path), whole[1])


def test_a_comparison_begun_together_may_be_continued_one_by_one(whole, tmp_path):
    class Stop(Exception):
        pass

    def stop(line, config):
        if line["round"] == 4:
            raise Stop

    with pytest.raises(Stop):
        compared(tmp_path, METHODS, on_round=stop)
    compared(tmp_path, METHODS, together=False)
    assert alike(on_disk(tmp_path), whole[1])


def test_a_process_that_is_killed_again_and_again(whole, tmp_path):
    kills = 0
    for lines in (3, 12, 30):  # of 48
        process = FORKS.Process(target=compared, args=(tmp_path, METHODS))
        process.start()
        while process.is_alive() and sum(log.read_bytes().count(b"\n") for log in logs(tmp_path)) < lines:
            time.sleep(0.002)
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
    assert kills == 3
    compared(tmp_path, METHODS)
    assert alike(on_disk(tmp_path), whole[1])


def logs(place):
    return list(place.glob("*/seed-*/rounds.jsonl"))


def test_a_directory_in_use_or_already_there_is_refused_before_anything_is_written(tmp_path):
    last = tmp_path / "scaffold+prox_mu=1.0_" / "seed-1"
    with RunDirectory(last).locked(), pytest.raises(fb.UserError, match="in use by another process"):
        compared(tmp_path, METHODS)
    assert not list(tmp_path.rglob("config.toml"))
    compared(tmp_path, METHODS[2:], seeds=[1])
    with pytest.raises(fb.UserError, match="already holds a run"):
        compared(tmp_path, METHODS, resume=False)
    assert [p.parent for p in tmp_path.rglob("config.toml")] == [last]


def test_runs_that_memory_cannot_hold_at_once_go_one_after_the_other(whole, tmp_path, monkeypatch):
    monkeypatch.setattr("fedbraid.training.shared_stack.free_memory", lambda device: 0)
    with stacks() as sizes:
        compared(tmp_path, METHODS)
    assert set(sizes) == {3}
    assert alike(on_disk(tmp_path), whole[1])


def test_the_loop_trains_run_after_run(tmp_path, caplog):
    seen = []
    with caplog.at_level(logging.INFO, "fedbraid"):
        compared(
            tmp_path,
            ("fedavg",),
            engine={"kind": "loop", "device": "cpu"},
            on_round=lambda line, c: seen.append(c.seed),
        )
    assert seen == [0] * 8 + [1] * 8
    assert not caplog.records


def test_noise_of_its_own_keeps_a_run_apart():
    settings = {"partition": {"name": "noise", "clients": 4}, "rounds": 2, "engine": {"device": "cpu"}}
    with stacks() as sizes:
        together = fb.compare("fedavg", seeds=2, **settings)
    assert sizes == [4] * 4
    alone = [fb.run("fedavg", seed=seed, **settings) for seed in (0, 1)]
    assert [timeless(run) for run in together.runs] == [timeless(run) for run in alone]


# --- the command line


@pytest.fixture
def fedbraid(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedbraid", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return call


def test_separate_gives_the_same_table(fedbraid):
    words = ("compare", "prox(mu=0.1)", "prox(mu=1)", "--seeds", 2, "--device", "cpu", "--set", "rounds=2")
    scores = []
    for more, expected in (((), [40] * 2), (("--separate",), [10] * 8)):
        with stacks() as sizes:
            code, out, err = fedbraid(*words, *more, "--set", "engine.dtype=float64", "--out", f"c{len(more)}")
        assert code == 0, err
        assert sizes == expected
        assert err.count("round 2/2") == 4, "each run's last line"
        assert "± " in out
        scores.append([line["accuracy"] for line in lines_of(Path(f"c{len(more)}"))])
    assert np.allclose(*scores, atol=1e-9) and len(scores[0]) == 8


def lines_of(place):
    return [json.loads(line) for log in sorted(logs(place)) for line in log.read_text().splitlines()]


def told(records, runs, terminal):
    """What a user sees of these rounds (method, seed, round, accuracy), each two and a half seconds after the last."""
    console = Console(record=True, force_terminal=terminal, width=200, file=io.StringIO())
    clock = iter(np.arange(1, 100) * 2.5)
    with pytest.MonkeyPatch.context() as patch, cli_show.progress(console, 3 * runs) as on_round:
        patch.setattr(cli_show, "monotonic", lambda: next(clock))
        for method, seed, number, accuracy in records:
            line = {"round": number, "accuracy": accuracy, "loss": 0.5, "seconds": 2.0, "backward_samples": 1000}
            on_round(line, Config(method=method, seed=seed, rounds=3))
    return console.export_text().splitlines()


def test_runs_that_go_together_are_told_of_together():
    records = [("fedavg", seed, number, 0.5 + seed / 10) for number in (1, 2, 3) for seed in (0, 1, 2)]
    lines = told([*records, ("prox", 0, 1, 0.25), ("prox", 0, 2, None)], 4, terminal=False)
    assert lines[0] == "fedavg seed 0: round 1/3  accuracy 50.00 %  500 samples/s"
    assert lines[5] == (
        "fedavg seeds 0 to 2: round 2/3  mean accuracy 60.00 %  500 samples/s  about 6 s left in these runs"
    )
    assert lines[6:9] == [f"fedavg seed {s}: round 3/3  accuracy {50 + 10 * s}.00 %  500 samples/s" for s in range(3)]
    assert lines[9] == "prox seed 0: round 1/3  accuracy 25.00 %  500 samples/s"
    assert lines[10] == "prox seed 0: round 2/3  loss 0.5000  500 samples/s  about 2 s left in this run"


def test_seeds_and_methods_as_they_are_said():
    assert cli_show.said_runs([("a", 3)]) == "a seed 3"
    assert cli_show.said_runs([("a", 3), ("b", 3)]) == "a, b seed 3"
    assert cli_show.said_runs([("a", 2), ("a", 3), ("b", 2), ("b", 3)]) == "a, b seeds 2 to 3"
    assert cli_show.said_runs([("a", 1), ("a", 5)]) == "a seeds 1, 5"


def test_the_bar_counts_the_rounds_of_all_runs(monkeypatch):
    shown = []
    monkeypatch.setattr(cli_show.Progress, "update", lambda self, task, **now: shown.append(now))
    told([("fedavg[x]", seed, number, 0.5) for number in (1, 2, 3) for seed in (0, 1)], 2, terminal=True)
    assert [now["completed"] for now in shown] == [1, 2, 3, 4, 5, 6]
    assert {now["total"] for now in shown} == {6}
    assert shown[3]["description"] == "fedavg[x] seeds 0 to 1" and shown[3]["round"] == "2/3"
    assert shown[5]["score"] == "accuracy 50.00 %"
