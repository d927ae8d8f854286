"""`fedbraid study` as a user would call it."""

import json
import os
import re
import shlex
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from tiny_study import RECIPE as WITH_PICTURES
from tiny_study import RUNS, timeless, written

from fedbraid.cli.app import main
from fedbraid.studies import recipe_files

pytestmark = pytest.mark.usefixtures("not_rendered")
ROOT = Path(__file__).parents[2]
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
def few(monkeypatch):
    """As if FedBraid had no more recipes than these: planning all of them takes seconds."""
    monkeypatch.setattr(recipe_files, "names", lambda: ["asd-table2", "example"])


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


def check_all(fedbraid):
    code, out, err = fedbraid("check")
    assert code == 0, err
    assert [line.split(":")[0] for line in out.splitlines()] == recipe_files.names()


def test_recipes_of_fedbraid_are_right(fedbraid, few):
    check_all(fedbraid)


@pytest.mark.slow
def test_all_recipes_of_fedbraid_are_right(fedbraid):
    check_all(fedbraid)


def test_the_list_tells_what_is_done_here(fedbraid, few):
    code, out, err = fedbraid("list", "--data-dir", ".", "--json")
    assert code == 0, err
    example = next(row for row in json.loads(out) if row["name"] == "example")
    assert (example["item"], example["cells"], example["runs"], example["done"]) == ("Example", 6, 18, 0)
    lacking = {row["name"]: row["lacking"] for row in json.loads(out)}
    assert lacking["example"] == 0 and lacking["asd-table2"] > 0  # digits are always here, CIFAR-100 is not
    shown = fedbraid("list")[1]
    assert re.search(r"example +Three methods.* 6 +18 +0 *$", shown, re.M)


def test_a_study_is_run_and_reported(fedbraid, rendered, reports, tmp_path):
    tiny = written(tmp_path, RECIPE)
    code, out, err = fedbraid("run", tiny, "--only", "FedAvg", "--seeds", 1)
    assert code == 0, err
    assert "tiny: FedAvg @ skewed, seed 0, is recorded; 1 to go" in err
    assert "FedAvg @ skewed seed 0: round 4/4" in err
    assert "report: results/tiny/report.html" in out and "FedAvg" in out
    assert len(list(Path("results/runs").glob("*/*.json"))) == 2
    code, out, err = fedbraid("run", tiny, "--json")
    left = {"finished": RUNS, "left": 0, "refused": 0, "reports": {"tiny": "results/tiny"}}
    assert code == 0 and json.loads(out) == left and err.count("is recorded") == RUNS - 2
    written_before = Path("results/tiny/table.md").read_text()
    Path("results/tiny/table.md").unlink()
    code, out, err = fedbraid("report", tiny)
    assert code == 0 and not err and Path("results/tiny/table.md").read_text() == written_before


def test_packed_records_make_the_same_report(fedbraid, reports, tmp_path):
    tiny = written(tmp_path, RECIPE)
    assert fedbraid("pack") == (
        1,
        "",
        "nothing of any study is finished in results; `fedbraid study run NAME` runs one\n",
    )
    fedbraid("run", tiny, "--seeds", 1)
    before = {file.name: file.read_bytes() for file in Path("results/tiny").iterdir()}
    code, out, err = fedbraid("pack")
    assert code == 0 and not err and out.startswith(f"packed {RUNS // 2} records into 1 archive, ")
    assert [path.name for path in Path("results/runs").iterdir()] == ["digits.jsonl.xz"]
    for file in Path("results/tiny").iterdir():
        file.unlink()
    code, out, err = fedbraid("report", tiny, "--seeds", 1)
    assert code == 0 and not err
    assert {file.name: file.read_bytes() for file in Path("results/tiny").iterdir()} == before
    code, out, err = fedbraid("run", tiny, "--json")
    assert json.loads(out)["finished"] == RUNS and err.count("is recorded") == RUNS - RUNS // 2, "the rest was packed"
    assert fedbraid("unpack") == (0, f"unpacked {RUNS // 2} records: results/runs\n", "")
    assert len(list(Path("results/runs").glob("*/seed-*.json"))) == RUNS


def test_progress_tells_cells_apart(fedbraid, reports, tmp_path):
    natural = RECIPE.replace('name = "iid", clients = 6', 'name = "natural"').replace(
        'data = { name = "digits", samples = 120, test_samples = 60 }', 'data = { name = "synthetic", clients = 8 }'
    )
    _, _, err = fedbraid("run", written(tmp_path, natural), "--seeds", 1, "--only", "FedAvg")
    assert {line.partition(":")[0] for line in err.splitlines() if "round 4/4" in line} == {
        "FedAvg @ skewed seed 0",
        "FedAvg @ alike seed 0",
    }


def test_all_that_were_begun_are_reported(fedbraid, reports, monkeypatch, tmp_path):
    (tmp_path / "recipes").mkdir()
    monkeypatch.setattr(recipe_files, "HERE", tmp_path / "recipes")
    written(recipe_files.HERE, RECIPE, "one")
    written(recipe_files.HERE, RECIPE.replace("rounds = 4", "rounds = 3"), "other")
    assert fedbraid("run", "one", "--seeds", 1, "--only", "FedAvg @ skewed")[0] == 0
    (tmp_path / "results" / "one" / "table.md").unlink()
    code, out, err = fedbraid("report")
    assert code == 0 and not err and out.count("report: ") == 1
    assert (tmp_path / "results" / "one" / "table.md").exists() and not (tmp_path / "results" / "other").exists()


def test_runs_of_a_recipe_of_ones_own_are_told_to_be_named(fedbraid, few, reports, tmp_path):
    assert "nothing of any study is finished in results" in fedbraid("report")[2]
    assert fedbraid("run", written(tmp_path, RECIPE), "--seeds", 1, "--only", "FedAvg @ skewed")[0] == 0
    code, _, err = fedbraid("report")
    assert code == 0 and "results has 1 finished runs, but none of FedBraid's recipes" in err and ".toml file" in err


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
    code, _, err = fedbraid("run", tiny, "--shard", "4/4", "--seeds", 1, "--only", "FedAvg")
    assert code == 0 and err == "nothing to run: there are 2 different runs, and --shard 4/4 has none of them\n"


def test_a_report_of_what_nobody_ran_says_so(fedbraid, reports, tmp_path):
    tiny = written(tmp_path, RECIPE)
    code, out, err = fedbraid("report", tiny, "--out", "o", "--scale", "small")
    asked = f"{tiny} --out o --scale small"
    assert (code, out) == (1, "") and not Path("o").exists()
    assert err == f"nothing of {tiny} is finished in o; `fedbraid study run {asked}` runs it\n"
    assert fedbraid("run", tiny, "--out", "o", "--seeds", 1, "--only", "FedAvg @ skewed")[0] == 0
    other = written(tmp_path, RECIPE.replace("rounds = 4", "rounds = 3"), "other")
    code, out, err = fedbraid("report", tiny, other, "--out", "o")
    assert code == 0 and out.count("report: ") == 1 and err.startswith(f"nothing of {other} is finished in o; ")


def test_a_report_without_any_number_is_none(fedbraid, reports, monkeypatch, tmp_path):
    (tmp_path / "recipes").mkdir()
    monkeypatch.setattr(recipe_files, "HERE", tmp_path / "recipes")
    analysed = RECIPE.replace('metric = "rounds_to(target=0.5)"\n', "")
    analysed = analysed.replace('metric = "last"', "metric = \"analysis(name='hessian.top')\"")
    written(recipe_files.HERE, analysed.replace("rounds = 4", 'rounds = 4\nanalyze = ["hessian"]'), "sharp")
    plain = written(tmp_path, RECIPE)
    assert fedbraid("run", plain, "--seeds", 1, "--only", "FedAvg @ skewed")[0] == 0
    says = (
        "nothing of sharp has a number in results: 1 of its runs is finished, but without what its numbers are read "
        "from, the analysis hessian; `fedbraid study run sharp` makes what is missing\n"
    )
    assert fedbraid("report", "sharp") == (1, "", says)
    assert fedbraid("report") == (0, "", says), "nothing else was begun"
    written(recipe_files.HERE, RECIPE, "tiny")
    code, out, err = fedbraid("report")
    assert (code, err) == (0, "") and out.count("report: ") == 1
    assert not (tmp_path / "results" / "sharp").exists()


def test_a_report_waits_for_the_row_that_its_numbers_are_measured_by(fedbraid, reports, tmp_path):
    beside = RECIPE.replace('metric = "last"', "metric = \"speedup(row='FedAvg')\"")
    beside = written(tmp_path, beside.replace('metric = "rounds_to(target=0.5)"\n', ""), "beside")
    plain = written(tmp_path, RECIPE)
    assert fedbraid("run", plain, "--seeds", 1, "--only", "FedAvg+Disco @ skewed")[0] == 0
    code, out, err = fedbraid("report", beside)
    assert (code, out) == (
        1,
        "",
    ) and "1 of its runs is finished, but not those that their numbers are measured by" in err


def test_nothing_is_planned_where_there_is_nothing(fedbraid, reports, monkeypatch):
    monkeypatch.setattr(recipe_files, "read", None)
    code, out, err = fedbraid("report")
    assert (code, out) == (0, "") and "nothing of any study is finished in results" in err


def test_data_that_is_missing_is_one_line(fedbraid, reports, tmp_path):
    text = RECIPE.replace('name = "digits", samples = 120, test_samples = 60', 'name = "cifar10"')
    code, _, err = fedbraid("run", written(tmp_path, text), "--data-dir", tmp_path)
    assert code == 1, "nothing of what was asked for could be run"
    assert err.startswith("skipped: 8 runs of 4 cells, because data set 'cifar10' is not in") and err.count("\n") == 1


def test_where_some_have_their_data_those_are_run(fedbraid, reports, tmp_path):
    text = RECIPE.replace("clients = 6 } }\nsmall", 'clients = 6 }, data = { name = "cifar10" } }\nsmall')
    words = ["run", written(tmp_path, text), "--data-dir", tmp_path, "--seeds", 1]
    for _ in ("run", "and finished before"):
        code, _, err = fedbraid(*words, "--only", "FedAvg")
        assert code == 0 and "skipped: 1 runs of 1 cells" in err
    assert fedbraid(*words, "--only", "@ alike")[0] == 1


CALM = """
from dataclasses import dataclass

import fedbraid as fb


@dataclass(frozen=True)
class Calm(fb.Strand):
    most: float = 0.1

    def end(self, w, c):
        update = w - c.start
        return {"model": c.start + (self.most / update.norm().clamp(min=1e-12)).clamp(max=1.0) * update}, c.state
"""


def test_a_strand_of_ones_own_is_run_reported_and_found_again(fedbraid, reports, tmp_path):
    Path("calm.py").write_text(CALM)
    text = RECIPE.replace('"fedavg+disco"', '"calm+disco"').replace("a = 0.4 }", "a = 0.4 }, calm = { most = 0.01 }")
    mine, own = written(tmp_path, text, "mine"), ["--strand", "calm.py:Calm"]
    code, _, err = fedbraid("check", mine)
    assert code == 1 and "no method is called 'calm'" in err
    assert fedbraid("check", mine, *own) == (0, f"mine: 5 cells, {RUNS} runs\n", "")
    code, out, err = fedbraid("run", mine, *own, "--seeds", 1, "--only", "@ skewed")
    assert code == 0 and err.count("is recorded") == 2, err
    configs = [json.loads(file.read_text())["config"] for file in Path("results/runs").glob("*/*.json")]
    assert {"most": 0.01} in [config.get("strands", {}).get("calm") for config in configs]
    accuracies = re.search(r"FedAvg\*\* \| (\S+).*FedAvg\+Disco\*\* \| (\S+)", out, re.S).groups()
    assert accuracies[0] != accuracies[1], "it does something"
    code, again, err = fedbraid("report", mine, *own, "--seeds", 1)
    assert code == 0 and again == out and not err


def test_the_docs_say_how_a_strand_of_ones_own_takes_part(fedbraid, reports):
    page, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/studies.md", "README.md"))
    [strand] = [code for code in re.findall(r"```python\n(.*?)```", readme, re.S) if "class Calm" in code]
    [text] = re.findall(r"```toml recipe\n(.*?)```", page, re.S)
    [row, command] = re.findall(r"`(set = [^`]*calm[^`]*|fedbraid study [^`]*--strand[^`]*)`", page)
    Path("mine.py").write_text(strand)
    Path("mine.toml").write_text(f'{text}\n[[rows]]\nname = "Calm"\n{row}\n')
    words = shlex.split(command)[2:]
    code, out, err = fedbraid(*words, "--scale", "small", "--seeds", 1, "--only", "Calm")
    assert code == 0 and err.count("mine: Calm @") == 2 and "**Calm**" in out, err


def offered(out):
    """The commands under what is missing."""
    return [shlex.split(line)[1:] for line in out.splitlines() if line.startswith("    fedbraid study run ")]


def test_the_command_for_what_is_missing_runs_it(fedbraid, reports, tmp_path):
    Path("calm.py").write_text(CALM)
    Path("a folder").mkdir()
    written(Path("a folder"), RECIPE.replace('"fedavg+disco"', '"calm+disco"'), "mine")
    options = ["--out", "other place", "--strand", "calm.py:Calm", "--scale", "small", "--seeds", 1]
    code, out, err = fedbraid("run", "a folder/mine.toml", *options, "--only", "FedAvg")
    assert code == 0, err
    [command] = offered(out)
    assert command[:3] == ["study", "run", "a folder/mine.toml"]
    code, out, err = fedbraid(*command[1:])
    assert code == 0 and err.count("is recorded") == 2 and not offered(out), err
    assert not Path("results").exists()
    code, out, _ = fedbraid("run", "example", "--minutes", 0, "--only", "FedAvg @ β = 0.1", "--seeds", 1)
    assert code == 3 and offered(out) == [["study", "run", "example", "--seeds", "1", "--resume"]]


def told_seeds(name="tiny"):
    return json.loads(Path(f"results/{name}/results.json").read_text())["seeds"]


def test_a_report_has_the_seeds_that_there_are(fedbraid, reports, tmp_path):
    tiny = written(tmp_path, RECIPE)
    assert fedbraid("run", tiny, "--seeds", 4, "--only", "FedAvg @ alike")[0] == 0
    assert told_seeds() == [0, 1, 2, 3]
    assert fedbraid("report", tiny)[0] == 0 and told_seeds() == [0, 1, 2, 3], "not the recipe's two only"
    assert fedbraid("run", tiny, "--only", "FedAvg @ skewed")[0] == 0 and told_seeds() == [0, 1, 2, 3]
    for seeds in (1, 3, 5):
        assert fedbraid("report", tiny, "--seeds", seeds)[0] == 0
        assert told_seeds() == list(range(seeds)), "exactly what is asked for"


def test_two_recipes_that_would_be_reported_in_one_folder_are_refused(fedbraid, tmp_path):
    for folder in ("a", "b"):
        Path(folder).mkdir()
        written(Path(folder), RECIPE, "mine")
    for command in ("run", "report"):
        code, out, err = fedbraid(command, "a/mine.toml", "b/mine.toml")
        said = "a/mine.toml and b/mine.toml would both be reported in results/mine; give one file another name"
        assert (code, out, err) == (2, "", f"error: {said}\n")
    written(Path("a"), RECIPE, "example")
    assert "has the name, and would have the report, of a recipe of FedBraid's" in fedbraid("run", "a/example.toml")[2]
    assert "would be reported in results/runs" in fedbraid("run", written(tmp_path, RECIPE, "runs"))[2]
    assert not Path("results").exists()
    assert fedbraid("check", "a/mine.toml", "b/mine.toml")[0] == 0


@pytest.mark.parametrize("place", ["out", "out/sub", "out/runs", "out/unfinished", "out/tiny"])
@pytest.mark.parametrize("command", ["run", "report"])
def test_a_place_that_is_none_is_told_before_anything_is_trained(command, place, fedbraid, tmp_path):
    tiny, file = written(tmp_path, RECIPE), Path(place.removesuffix("/sub"))
    file.parent.mkdir(exist_ok=True)
    file.touch()
    where = place if place in ("out", "out/sub") else "out"
    code, out, err = fedbraid(command, tiny, "--out", where)
    said = f"error: {file} is not a folder, which a study needs there; choose another --out\n"
    assert (code, out, err) == (2, "", said)


def test_a_list_of_a_place_that_is_none(fedbraid):
    Path("out").touch()
    assert "out is not a folder" in fedbraid("list", "--out", "out")[2]


def test_a_place_that_cannot_be_written_is_told_before_anything_is_trained(fedbraid, tmp_path, monkeypatch):
    Path("results").mkdir()
    monkeypatch.setattr(
        os, "access", lambda place, mode: mode == os.R_OK or str(place) != "results"
    )  # who runs the tests may be root
    code, out, err = fedbraid("run", written(tmp_path, RECIPE))
    assert (code, out, err) == (2, "", "error: nothing can be written to results; choose another --out\n")


CALCULATED = """
paper = "made up"
item = "Table 2"
title = "Sums"
metric = "calculated"
calculation = "sums"
base = { a = 1 }
rows = [{ name = "sum" }]
columns = [{ name = "b = 1", set = { b = 1 } }]
"""


def test_what_is_calculated_is_reported_with_all_that_were_begun(fedbraid, reports, monkeypatch, tmp_path):
    (tmp_path / "recipes").mkdir()
    monkeypatch.setattr(recipe_files, "HERE", tmp_path / "recipes")
    monkeypatch.setitem(recipe_files.CALCULATIONS, "sums", lambda settings, seed: 3.0)
    written(recipe_files.HERE, RECIPE, "one")
    written(recipe_files.HERE, CALCULATED, "sums")
    nothing = "nothing of any study is finished in results; `fedbraid study run NAME` runs one\n"
    assert fedbraid("report") == (0, "", nothing) and not Path("results").exists()
    assert fedbraid("run", "sums")[0] == 0
    Path("results/sums/table.md").unlink()
    code, out, err = fedbraid("report")
    assert code == 0 and not err and out.count("report: ") == 1 and Path("results/sums/table.md").exists()


def test_settings_that_only_some_recipes_have_are_reported_of_those(fedbraid, reports, monkeypatch, tmp_path):
    (tmp_path / "recipes").mkdir()
    monkeypatch.setattr(recipe_files, "HERE", tmp_path / "recipes")
    written(recipe_files.HERE, RECIPE, "one")
    written(recipe_files.HERE, RECIPE.replace('"fedavg"', '"fedprox"'), "two")
    changed = "--set", "strands.prox.mu=2.0"
    assert fedbraid("run", "two", *changed, "--seeds", 1)[0] == 0
    code, out, err = fedbraid("report", *changed)
    assert code == 0 and not err and out.count("report: ") == 1 and "results/two-strands.prox.mu=2.0" in out
    code, _, err = fedbraid("report", "--set", "strands.asd.lam=2.0")
    assert code == 2 and "strands.asd is set, but no method of one has it" in err


def test_a_row_that_only_some_recipes_have_is_run_of_those(fedbraid, reports, tmp_path):
    one, other = written(tmp_path, RECIPE), written(tmp_path, RECIPE.replace('"FedAvg again"', '"Other"'), "other")
    code, out, err = fedbraid("run", one, other, "--only", "Other", "--seeds", 1)
    assert code == 0 and err.count("is recorded") == 1 and out.count("report: ") == 1, err
    assert Path("results/other").is_dir() and not Path("results/tiny").exists()
    code, _, err = fedbraid("run", one, other, "--only", "Othr")
    assert code == 2 and "error: tiny: no row is called 'Othr'" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "exampel"], "no recipe is called 'exampel'; did you mean 'example'?"),
        (["run", "example", "--only", "FedAv"], "no row is called 'FedAv'; did you mean 'FedAvg'?"),
        (["run", "example", "--set", "runds=3"], "no setting is called 'runds'"),
        (["run", "example", "--set", "rounds"], "--set takes key=value"),
        (["run", "example", "--set", "method=fedavg"], "--set method has no place here: the recipe says the method"),
        (["report", "example", "--set", "seed=3"], "--set seed has no place here: the recipe says how many seeds"),
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


BREAKS = """
from dataclasses import dataclass
import fedbraid as fb

@dataclass(frozen=True)
class Breaks(fb.Strand):
    late: bool = True

    def absorb(self, r):
        assert r.number < 1, "in the second round"
        return {}
"""


def test_a_run_that_goes_wrong_does_not_stop_the_others(fedbraid, tmp_path, reports):
    Path("breaks.py").write_text(BREAKS)
    file, own = written(tmp_path, RECIPE.replace('"fedavg+disco"', '"breaks+disco"')), "breaks.py:Breaks"
    code, out, err = fedbraid("run", file, "--seeds", 1, "--json", "--strand", own)
    told = json.loads(out)
    assert code == 1 and told["refused"] == err.count("went wrong, and the others go on: ") > 0 == told["left"]
    assert "in the second round" in err and told["finished"] > 0


def test_a_cell_that_cannot_be_run_does_not_stop_the_others(fedbraid, tmp_path, reports):
    file = written(tmp_path, RECIPE.replace('name = "iid", clients = 6', 'name = "iid", clients = 600'))
    code, out, err = fedbraid("run", file, "--seeds", 1, "--json")
    assert (code, json.loads(out)["finished"], json.loads(out)["left"]) == (1, 2, 0)
    assert err.count("FedAvg @ alike cannot be run: ") == 1 and "2 runs cannot be run as they are asked for" in err
    told = Path("results/tiny/table.md").read_text(encoding="utf-8")
    assert "| cannot be run |" in told and "- alike cannot be run: " in told and "not run yet" not in told
    assert fedbraid("run", file, "--seeds", 1, "--only", "@ skewed")[0] == 0


def test_overview_of_a_folder(fedbraid, reports, tmp_path):
    code, _, err = fedbraid("overview")
    assert code == 2 and "results has no reports" in err
    fedbraid("run", "asd-table5")
    code, out, _ = fedbraid("overview")
    assert code == 0 and "| – | 16 | – | 0.00 | – | – |" in out and "overview: results/overview.html" in out
    assert (tmp_path / "results" / "overview.md").read_text() in out


def test_rounds_are_said_once(fedbraid, tmp_path):
    code, _, err = fedbraid("run", written(tmp_path, RECIPE), "--rounds", 3, "--set", "rounds=2")
    assert code == 2 and "--rounds and --set rounds both say how many rounds there are" in err


def test_a_round_that_was_not_evaluated_has_the_score_before_it(fedbraid, tmp_path):
    text = RECIPE.replace('metric = "last"', 'metric = "at(round=3)"').replace(
        "[base]", "[base]\nevaluate = { every = 2 }"
    )
    assert fedbraid("run", written(tmp_path, text), "--seeds", 1, "--only", "FedAvg")[0] == 0
    told = Path("results/tiny/table.md").read_text()
    assert "accuracy after round 2 (the last evaluated by round 3)" in told


def test_targets_that_are_reached_as_much_sooner_on_every_seed_decide_nothing(fedbraid, tmp_path):
    """Everybody reaches 0.1 % in the first round, nobody 100 %: what was not reached counts as a round more."""
    text = RECIPE.replace('metric = "last"', 'metric = "rounds_to(target=0.001)"')
    text = text.replace('name = "FedAvg"\nset', 'name = "FedAvg"\nmetric = "rounds_to(target=1.0)"\nset')
    assert fedbraid("run", written(tmp_path, text))[0] == 0
    (claim,) = json.loads(Path("results/tiny/results.json").read_text())["claims"]
    assert [{*pair["differences"].values()} for pair in claim["pairs"]] == [{4.0}, {4.0}]
    assert claim["verdict"] == "undecided"
