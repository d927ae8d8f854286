"""`fedbraid study` as a user would call it."""

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from tiny_study import RECIPE as WITH_PICTURES
from tiny_study import RUNS, timeless, written

from fedbraid.cli import main
from fedbraid.studies import recipes

RECIPE = WITH_PICTURES[: WITH_PICTURES.index("[[pictures]]")]  # they take longer than all else


@pytest.fixture
def fedbraid(monkeypatch, capsys, tmp_path):
    """Call the command in an empty directory: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedbraid", "study", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture
def reports():
    """What needs the report of a study."""
    pytest.importorskip("fedbraid.studies.report")


def test_check_tells_what_is_right_and_what_is_wrong(fedbraid, tmp_path):
    good, bad = written(tmp_path, RECIPE), written(tmp_path, RECIPE.replace('"last"', '"lst"'), "bad")
    code, out, err = fedbraid("check", good, bad, "example")
    assert code == 1
    assert out == f"tiny: 5 cells, {RUNS} runs\nexample: 6 cells, 18 runs\n"
    assert err.startswith("error: bad.toml: metric: no metric is called 'lst'") and err.count("\n") == 1
    assert fedbraid("check", good) == (0, f"tiny: 5 cells, {RUNS} runs\n", "")


def test_what_fedbraid_has_is_right(fedbraid):
    code, out, err = fedbraid("check")
    assert code == 0, err
    assert [line.split(":")[0] for line in out.splitlines()] == recipes.names()


def test_the_list_tells_what_is_done_here(fedbraid):
    code, out, err = fedbraid("list", "--json")
    assert code == 0, err
    example = next(row for row in json.loads(out) if row["name"] == "example")
    assert (example["item"], example["cells"], example["runs"], example["done"]) == ("Example", 6, 18, 0)
    shown = fedbraid("list")[1]
    assert re.search(r"example +Three methods.* 6 +18 +0 *$", shown, re.M)


def test_a_study_is_run_and_reported(fedbraid, reports, tmp_path):
    tiny = written(tmp_path, RECIPE)
    code, out, err = fedbraid("run", tiny, "--only", "FedAvg", "--seeds", 1)
    assert code == 0, err
    assert "tiny: FedAvg @ skewed, seed 0, is recorded; 1 to go" in err
    assert "fedavg on digits seed 0: round 4/4" in err
    assert "report: results/tiny/report.html" in out and "FedAvg" in out
    assert len(list(Path("results/runs").glob("*/*.json"))) == 2
    code, out, err = fedbraid("run", tiny, "--json")
    left = {"finished": RUNS, "left": 0, "refused": 0, "reports": {"tiny": "results/tiny"}}
    assert code == 0 and json.loads(out) == left and err.count("is recorded") == RUNS - 2
    written_before = Path("results/tiny/table.md").read_text()
    Path("results/tiny/table.md").unlink()
    code, out, err = fedbraid("report", tiny)
    assert code == 0 and not err and Path("results/tiny/table.md").read_text() == written_before


def test_all_that_were_begun_are_reported(fedbraid, reports, monkeypatch, tmp_path):
    (tmp_path / "recipes").mkdir()
    monkeypatch.setattr(recipes, "HERE", tmp_path / "recipes")
    written(recipes.HERE, RECIPE, "one")
    written(recipes.HERE, RECIPE.replace("rounds = 4", "rounds = 3"), "other")
    assert fedbraid("run", "one", "--seeds", 1, "--only", "FedAvg @ skewed")[0] == 0
    (tmp_path / "results" / "one" / "table.md").unlink()
    code, out, err = fedbraid("report")
    assert code == 0 and not err and out.count("report: ") == 1
    assert (tmp_path / "results" / "one" / "table.md").exists() and not (tmp_path / "results" / "other").exists()


def test_a_table_that_is_run_otherwise_has_a_report_of_its_own(fedbraid, reports, tmp_path):
    tiny = written(tmp_path, RECIPE)
    options = ["--scale", "small", "--set", "local.epochs=2", "--seeds", 1]
    code, out, err = fedbraid("run", tiny, *options, "--only", "@ alike")
    assert code == 0, err
    assert "report: results/tiny-small-local.epochs=2/report.html" in out and "round 2/2" in err
    assert fedbraid("report", tiny, *options)[0] == 0
    assert not Path("results/tiny").exists()


def test_a_study_in_pieces(fedbraid, reports, tmp_path):
    tiny = written(tmp_path, RECIPE)
    words = ["run", tiny, "--out", "o", "--minutes", 0, "--only", "FedAvg @ skewed", "--seeds", 1]
    code, _, err = fedbraid(*words)
    assert code == 3 and "stopped: 1 runs are left; the same command with --resume goes on" in err
    code, _, err = fedbraid(*words)
    assert code == 2 and "holds an unfinished run of this study, one of 1; add --resume" in err
    codes = [fedbraid(*words, "--resume")[0] for _ in range(3)]
    assert codes == [3, 3, 0] and not Path("o/unfinished").exists()


def test_shards_of_the_command_line_merge(fedbraid, reports, tmp_path):
    tiny = written(tmp_path, RECIPE)
    for part in ("1/2", "2/2"):
        assert fedbraid("run", tiny, "--shard", part, "--seeds", 1, "--only", "FedAvg")[0] == 0
        assert len(timeless(Path("results"))) == int(part[0])
    assert fedbraid("run", tiny, "--seeds", 1, "--only", "FedAvg")[2] == "", "nothing is left"
    assert fedbraid("run", tiny, "--shard", "3/2")[0] == 2


def test_data_that_is_missing_is_one_line(fedbraid, reports, tmp_path):
    text = RECIPE.replace('name = "digits", samples = 120, test_samples = 60', 'name = "cifar10"')
    code, _, err = fedbraid("run", written(tmp_path, text), "--data-dir", tmp_path)
    assert code == 0
    assert err.startswith("skipped: 8 runs of 4 cells, because data set 'cifar10' is not in") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "exampel"], "no recipe is called 'exampel'; did you mean 'example'?"),
        (["run", "example", "--only", "FedAv"], "no row is called 'FedAv'; did you mean 'FedAvg'?"),
        (["run", "example", "--set", "runds=3"], "no setting is called 'runds'"),
        (["run", "example", "--set", "rounds"], "--set takes key=value"),
        (["run", "example", "--shard", "x"], "--shard takes a part such as 1/4"),
        (["report", "nothing.toml"], "there is no file nothing.toml"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(words, said, fedbraid):
    code, out, err = fedbraid(*words)
    assert code == 2 and said in err and err.startswith("error: ") and err.count("\n") == 1 and not out
    assert not Path("results").exists()


@pytest.fixture
def hears_ctrl_c():
    """Also where the tests were started in the background, of which a shell keeps Ctrl-C away."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_leaves_everything_for_the_same_command_with_resume(fedbraid, reports, hears_ctrl_c, tmp_path):
    tiny = written(tmp_path, RECIPE.replace("rounds = 4", "rounds = 2000"))
    words = ["run", tiny, "--only", "FedAvg @ skewed", "--seeds", 1]

    def press():
        while not list(tmp_path.glob("results/unfinished/*/*/checkpoint/checkpoint.json")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    code, _, err = fedbraid(*words)
    presser.join()
    assert code == 130 and "interrupted" in err and "--resume" in err
    [log] = tmp_path.glob("results/unfinished/*/*/rounds.jsonl")
    before = len(log.read_text().splitlines())
    code, _, err = fedbraid(*words, "--resume", "--minutes", 0)
    assert code == 3 and "1 runs are left" in err
    assert before - 2 <= len(log.read_text().splitlines()) <= before + 1, "from the last checkpoint, one round on"


def test_a_cell_that_cannot_be_run_does_not_stop_the_others(fedbraid, tmp_path, reports):
    file = written(tmp_path, RECIPE.replace('name = "iid", clients = 6', 'name = "iid", clients = 600'))
    code, out, err = fedbraid("run", file, "--seeds", 1, "--json")
    assert (code, json.loads(out)["finished"], json.loads(out)["left"]) == (1, 2, 0)
    assert err.count("FedAvg @ alike cannot be run: ") == 1 and "2 runs cannot be run as they are asked for" in err
    assert fedbraid("run", file, "--seeds", 1, "--only", "@ skewed")[0] == 0
