"""A study may be stopped at any instant, in pieces and on several machines: its records are the same."""

import os
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from unittest.mock import patch

import pytest
from forks import FORKS
from joined import stacks
from tiny_study import RECIPE, RUNS, conducted, runs_of, timeless, written

from fedbraid import data
from fedbraid.config.schema import flat
from fedbraid.errors import UserError
from fedbraid.studies import recipe_files, run_records
from fedbraid.studies.calculations import CALCULATIONS
from fedbraid.studies.file_digests import source_of
from fedbraid.studies.run_digest import config_of
from fedbraid.studies.study_plan import planned, shard, table
from fedbraid.studies.study_runner import conduct, state, unfinished
from fedbraid.studies.table_results import gathered
from fedbraid.training import scheduler
from fedbraid.training.run_directory import RunDirectory

ROUNDS = 4


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return written(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    """The records of a study that nobody disturbed, and where they are."""
    out = tmp_path_factory.mktemp("whole")
    with stacks() as sizes:
        now = conducted(recipe, out)
    assert sizes == [4 * 4] * 2 * ROUNDS, "two splits and two seeds with four clients each in one stack"
    assert len(now.finished) == RUNS and not now.pending
    return out


def built():
    """Counts the federations that are built."""
    return patch.object(scheduler, "build_simulation", wraps=scheduler.build_simulation)


def test_every_run_is_recorded_and_nothing_else_is_left(whole):
    assert len(timeless(whole)) == RUNS
    assert [place.name for place in whole.iterdir()] == ["runs"]
    for values in timeless(whole).values():
        assert values["series"]["round"] == list(range(1, ROUNDS + 1))
        assert len(values["label_counts"]) == 6 and sum(map(sum, values["label_counts"])) == 120
        assert values["engine"]["kind"] == "stack" and values["engine"]["device"] == "cpu"
        assert {"torch", "fedbraid", "machine", "gpu"} <= {*values["environment"]}


def test_what_is_finished_is_not_run_again(whole, recipe):
    before = {file: file.stat().st_mtime_ns for file in whole.glob("runs/*/*")}
    with built() as made:
        now = conducted(recipe, whole)
    assert made.call_count == 0 and len(now.finished) == RUNS
    assert before == {file: file.stat().st_mtime_ns for file in whole.glob("runs/*/*")}


def test_only_what_is_missing_is_run(whole, recipe, tmp_path):
    out = copied(whole, tmp_path)
    lost = next(out.glob("runs/*/seed-1.json"))
    lost.unlink()
    with built() as made:
        conducted(recipe, out)
    assert made.call_count == 1 and made.call_args.args[0].config.seed == 1
    assert alike(timeless(out), timeless(whole))


def copied(whole, place):
    return shutil.copytree(whole, place / "copy")


def alike(one, other):
    """The same to the digits that are kept: a run alone and one in a stack may differ in the very last."""
    one, other = flat(one), flat(other)
    return one.keys() == other.keys() and all(
        a == (pytest.approx(other[key], rel=2e-6) if isinstance(a, list | float) and "round" not in key else other[key])
        if not has_none(a)
        else a == other[key]
        for key, a in one.items()
    )


def has_none(value):
    return isinstance(value, list) and any(part is None or isinstance(part, list) for part in value)


def slowly(path, out):
    """For a process that is to be killed."""
    conducted(path, out, resume=True, on_round=lambda line, config: time.sleep(0.02))


def lines_begun(out):
    """Rounds of runs that are not finished; folders may vanish meanwhile, which os.walk does not mind."""
    logs = [Path(place) for place, _, files in os.walk(out / "unfinished") if "rounds.jsonl" in files]
    with suppress(FileNotFoundError):
        return sum(len(RunDirectory(log).rounds()) for log in logs)
    return 0


@pytest.mark.parametrize("kill_at", [(0, 10), (4, 6)], ids=str)
def test_killed_and_resumed_it_ends_with_the_same_records(kill_at, whole, recipe, tmp_path):
    process = FORKS.Process(target=slowly, args=(recipe, tmp_path))
    process.start()

    def there():
        return len(list(tmp_path.glob("runs/*/*.json"))), lines_begun(tmp_path)

    while process.is_alive() and not all(map(int.__le__, kill_at, there())):
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    finished = there()[0]
    assert finished < RUNS
    assert len(state(runs_of(recipe), tmp_path).begun) == 4
    with pytest.raises(UserError, match=r"holds an unfinished run of this study, one of 4; add --resume"):
        conducted(recipe, tmp_path)
    with built() as made:
        now = conducted(recipe, tmp_path, resume=True)
    assert made.call_count == RUNS - finished and len(now.finished) == RUNS
    assert not (tmp_path / "unfinished").exists()
    assert alike(timeless(tmp_path), timeless(whole))


def test_interrupted_it_is_continued(whole, recipe, tmp_path):
    ticks = count()

    def interrupt(line, config):
        if next(ticks) == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conducted(recipe, tmp_path, on_round=interrupt)
    now = state(runs_of(recipe), tmp_path)
    assert (len(now.finished), len(now.begun), len(now.untouched)) == (0, 4, 4)
    assert {unfinished(tmp_path, run).started for run in now.begun} == {True}
    conducted(recipe, tmp_path, resume=True)
    assert alike(timeless(tmp_path), timeless(whole))


def test_short_pieces_add_up_to_the_whole(whole, recipe, tmp_path):
    """No time at all is one round a piece, whatever was saved when."""
    for piece in range(1, 2 * ROUNDS + 1):
        seen = []
        now = conducted(
            recipe,
            tmp_path,
            minutes=0,
            resume=piece > 1,
            on_round=lambda line, _, seen=seen: seen.append(line["round"]),
        )
        assert seen == [(piece - 1) % ROUNDS + 1] * 4
        assert len(now.finished) == 4 * (piece // ROUNDS)
    assert not now.pending and alike(timeless(tmp_path), timeless(whole))


def test_a_record_is_written_as_soon_as_its_run_is_over(recipe, tmp_path):
    text = RECIPE.replace('set = { method = "fedavg" }', 'set = { method = "fedavg", rounds = 2 }', 1)
    there = []
    conducted(
        written(tmp_path, text),
        tmp_path,
        on_round=lambda line, config: there.append(len(list(tmp_path.glob("runs/*/*")))),
    )
    assert there[0] == 0 and 2 < there.index(2 * 2) < len(there) / 2, "the short runs, while the others go on"


def test_shards_that_are_copied_together_are_the_whole(whole, recipe, tmp_path):
    runs = runs_of(recipe)
    for number in (1, 2, 3):
        conduct(shard(runs, f"{number}/3"), tmp_path / str(number))
        assert len(timeless(tmp_path / str(number))) < RUNS
    for number in (1, 2, 3):
        shutil.copytree(tmp_path / str(number), tmp_path / "all", dirs_exist_ok=True)
    assert alike(timeless(tmp_path / "all"), timeless(whole))
    assert not state(runs, tmp_path / "all").pending


def test_what_a_killed_process_left_of_a_recorded_run_is_removed(whole, recipe, tmp_path):
    out = copied(whole, tmp_path)
    left = unfinished(out, runs_of(recipe)[0])
    left.path.mkdir(parents=True)
    (left.path / "config.toml").write_text("rounds = 4")
    conducted(recipe, out)
    assert not (out / "unfinished").exists()


def test_a_run_that_was_over_but_not_recorded_is_recorded(whole, recipe, tmp_path):
    with patch.object(run_records, "write", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        conducted(recipe, tmp_path)
    done = sorted(tmp_path.glob("unfinished/*/*/summary.json"))
    assert len(done) == 4 and not (tmp_path / "runs").exists()
    rounds = []
    conducted(recipe, tmp_path, resume=True, on_round=lambda line, config: rounds.append(config.method))
    assert {*rounds} == {"fedavg+disco"} and alike(timeless(tmp_path), timeless(whole))


def test_cells_without_their_data_are_left_out(recipe, tmp_path):
    text = RECIPE.replace("clients = 6 } }\nsmall", 'clients = 6 }, data = { name = "cifar10" } }\nsmall')
    path = written(tmp_path, text)
    now = conducted(path, tmp_path / "out", data_dir=tmp_path)
    assert len(now.finished) == 4 and not now.pending
    [(way, runs)] = now.without_data.items()
    assert "data set 'cifar10' is not in" in way and "fedbraid data get cifar10" in way and len(runs) == 4
    results = gathered(table(recipe_files.load(path)), tmp_path / "out", tmp_path)
    assert results.cells["FedAvg", "alike"].skipped == way and len(results.cells["FedAvg", "skewed"].values) == 2


def test_each_data_set_is_loaded_once(tmp_path):
    text = RECIPE.replace("clients = 6 } }\nsmall", "clients = 6 }, data = { samples = 100 } }\nsmall")
    with patch.object(data, "load", wraps=data.load) as load:
        conducted(written(tmp_path, text), tmp_path)
    assert [call.kwargs["samples"] for call in load.call_args_list] == [120, 100]


def test_the_table_is_gathered_from_the_records(whole, recipe):
    results = gathered(table(recipe_files.load(recipe)), whole)
    assert next(iter(results.cells)) == ("FedAvg", "skewed") and results.seeds == (0, 1) and results.variant == ""
    cell = results.cells["FedAvg+Disco", "alike"]
    assert cell.settings.strands["disco"]["a"] == 0.2 and cell.metric == "last" and not cell.missing
    assert cell.values == {seed: record.series["accuracy"][-1] for seed, record in cell.records.items()}
    assert [record.seed for record in cell.records.values()] == [0, 1]
    shared, again = results.cells["FedAvg", "alike"], results.cells["FedAvg again", "alike"]
    assert shared.records == again.records and again.values != shared.values, "read by another metric"
    assert results.cells["FedAvg again", "skewed"].skipped == "the paper has no such number"
    assert results.cells["FedAvg again", "skewed"].missing == ()


def test_a_damaged_record_is_told_of_before_anything_is_trained(whole, recipe, tmp_path):
    shutil.copytree(whole / "runs", tmp_path / "runs")
    broken, gone, *_ = sorted((tmp_path / "runs").glob("*/seed-*.json"))
    broken.write_text(broken.read_text()[:-40])
    gone.unlink()
    with built() as build, pytest.raises(UserError, match=f"{broken.name} is not a record of a run"):
        conducted(recipe, tmp_path)
    assert not build.called


def test_a_metric_that_finds_nothing_is_told_from_what_was_not_run(whole, recipe):
    metric = "last(of='nosuch')"
    made = table(replace(recipe_files.load(recipe), metric=metric))
    cells = [cell for cell in gathered(made, whole).cells.values() if cell.metric == metric and not cell.skipped]
    assert cells and all(cell.without == (0, 1) and not cell.missing and not cell.values for cell in cells)


def test_what_is_missing_is_told(whole, recipe, tmp_path):
    out = copied(whole, tmp_path)
    some = table(recipe_files.load(recipe))
    for run in runs_of(recipe):
        if run.config.seed == 1 or run.cells[0].startswith("tiny: FedAvg+Disco"):
            run_records.path_of(out, run.digest, run.config.seed).unlink()
    results = gathered(some, out)
    assert results.cells["FedAvg", "skewed"].missing == (1,) and list(results.cells["FedAvg", "skewed"].values) == [0]
    assert results.cells["FedAvg+Disco", "skewed"].missing == (0, 1)


# --- analyses and calculations


class Analyses:
    """Stands for the analyses of a finished run: numbers made of what its directory holds."""

    def __init__(self):
        self.asked = []

    def __call__(self, directory, text, given):
        self.asked.append(text)
        run = RunDirectory(directory)
        assert (directory / "model.safetensors").exists() and len(run.rounds()) == ROUNDS
        with run.locked():  # as an analysis does
            name = text.partition("(")[0]
            return {f"{name}.seed": float(run.config().seed), f"{name}.not.known": float("nan")}


def asking(folder, *names):
    listed = ", ".join(f'"{name}"' for name in names)
    return written(
        folder, RECIPE.replace('name = "skewed"\nset = {', f'name = "skewed"\nset = {{ analyze = [{listed}],')
    )


def test_analyses_are_made_once_of_those_who_ask(whole, tmp_path):
    made = Analyses()
    out = tmp_path / "out"
    conduct(runs_of(asking(tmp_path, "hessian")), out, analyze=made)
    assert made.asked == ["hessian"] * 4, "two methods on one of two splits, two seeds"
    with_analyses = {place for place, values in timeless(out).items() if values.pop("analyses")}
    assert len(with_analyses) == 4
    conduct(runs_of(asking(tmp_path, "hessian")), out, analyze=made)
    assert len(made.asked) == 4
    with built() as again:
        conduct(runs_of(asking(tmp_path, "hessian", "features(clients=3)")), out, analyze=made)
    assert again.call_count == 4 and made.asked[4:] == ["features(clients=3)"] * 4, "the rest has what it needs"
    for place in with_analyses:
        seed = float(place[-len("0.json")])
        numbers = {"seed": seed, "not.known": None}
        assert timeless(out)[place]["analyses"] == {"hessian": numbers, "features(clients=3)": numbers}


def test_the_real_analyses_are_asked_by_default(tmp_path):
    pytest.importorskip("fedbraid.analyses")
    runs = [run for run in runs_of(asking(tmp_path, "drift")) if run.analyze][:1]
    conduct(runs, tmp_path / "out")
    record = run_records.read(tmp_path / "out", runs[0].digest, 0)
    assert record.analyses["drift"]


def test_cells_that_are_calculated(tmp_path, monkeypatch):
    monkeypatch.setitem(CALCULATIONS, "sums", lambda settings, seed: settings["rounds"] + settings["extra"] + seed)
    text = """
        paper = "made up"
        item = "Table 6"
        title = "A bound"
        metric = "calculated"
        calculation = "sums"
        seeds = 2
        base = { rounds = 6 }
        [[rows]]
        name = "a"
        [[columns]]
        name = "1"
        set = { extra = 1 }
        [[columns]]
        name = "2"
        set = { extra = 2 }
    """
    made = table(recipe_files.load(written(tmp_path, text)))
    assert planned([made]) == []
    cells = gathered(made, tmp_path).cells
    assert cells["a", "1"].values == {0: 7, 1: 8} and cells["a", "2"].values == {0: 8, 1: 9}
    assert cells["a", "1"].settings is None and not cells["a", "1"].records


def test_files_that_changed_are_no_longer_what_was_recorded(tmp_path):
    """A run is known by its files' names: without a word, a table would keep the numbers of what was in them before."""
    table_of = [f"{k},{k % 7},{'ab'[k % 2]}" for k in range(60)]
    file = tmp_path / "own.csv"
    file.write_text("\n".join(["x,z,label", *table_of]) + "\n")
    text = RECIPE.replace('"digits", samples = 120, test_samples = 60', f'"csv", path = "{file}", label = "label"')
    recipe = written(tmp_path, text.replace("min_size = 3", "min_size = 1"))
    first = conducted(recipe, tmp_path / "out")
    assert len(first.finished) == RUNS and all(one["source"] for one in timeless(tmp_path / "out").values())
    with built() as builds:
        os.utime(file)  # as a copy would
        conducted(recipe, tmp_path / "out")
        file.write_text("\n".join(["x,z,label", *table_of[1:], table_of[0]]) + "\n")
        with pytest.raises(UserError, match=r"the files of tiny: FedAvg @ skewed have changed since it was recorded"):
            conducted(recipe, tmp_path / "out")
        file.unlink()
        conducted(recipe, tmp_path / "out")  # where the files are not, nothing is known of them
    assert not builds.called


def test_folders_are_known_by_what_is_in_them(tmp_path):
    def source():
        return source_of(config_of({"data": {"name": "folder", "path": str(tmp_path / "images")}}))

    assert source() == ""
    (tmp_path / "images" / "cats").mkdir(parents=True)
    empty = source()
    (tmp_path / "images" / "cats" / "1.png").write_bytes(b"12")
    assert len({"", empty, source()}) == 3
    assert source_of(config_of({})) == "", "no files of one's own"
