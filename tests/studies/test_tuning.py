"""Hyper-parameters that a study chooses itself: the same budget, the best candidate, a choice that is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tiny_study import RECIPE, written

from fedbraid.cli.app import main
from fedbraid.errors import UserError
from fedbraid.studies import recipe_files, run_records
from fedbraid.studies.run_digest import digest
from fedbraid.studies.study_plan import planned, table
from fedbraid.studies.tuning import candidates, choose, read_choice, tuned

pytestmark = pytest.mark.usefixtures("not_rendered")
PLAIN = RECIPE[: RECIPE.index("[[pictures]]")].replace("rounds = 4", "rounds = 2")
GRID = """
[tuning]
rule = "test"
seeds = 2
[[tuning.grids]]
rows = ["*+Disco"]
columns = ["skewed"]
values = { "strands.disco.a" = [0.1, 2.0], "optimizer.lr" = [0.05] }
"""
UNEVEN = GRID + '[[tuning.grids]]\nrows = ["FedAvg"]\nvalues = { "optimizer.lr" = [0.1, 0.2, 0.3] }\n'


def loaded(tmp_path: Path, tuning: str = GRID):
    return recipe_files.load(Path(written(tmp_path, PLAIN + tuning)))


def test_candidates_are_all_combinations_of_the_cells_that_have_a_grid(tmp_path):
    recipe = loaded(tmp_path)
    cells = table(recipe).cells
    assert {place: len(candidates(recipe, cell)) for place, cell in cells.items() if candidates(recipe, cell)} == {
        ("FedAvg+Disco", "skewed"): 2
    }
    first, second = candidates(recipe, cells["FedAvg+Disco", "skewed"])
    assert (
        first.values == {"strands.disco.a": 0.1, "optimizer.lr": 0.05}
        and second.cell.config.optimizer.options["lr"] == 0.05
    )
    assert second.cell.config.strands["disco"]["a"] == 2.0 and second.cell.config.evaluate.validation == 0


def test_by_validation_candidates_hold_samples_out_and_the_cell_does_not(tmp_path):
    recipe = loaded(tmp_path, GRID.replace('rule = "test"', "validation = 0.25"))
    made = tuned(table(recipe), tmp_path).cells["FedAvg+Disco", "skewed"]
    assert {cell.config.evaluate.validation for cell in made.waits_for} == {0.25}
    assert made.config.evaluate.validation == 0


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (("[0.1, 2.0]", "2.0"), "values.strands.disco.a must be a list of values, not 2.0"),
        (("[0.1, 2.0]", "[0.1, 0.1]"), "some values of tuning change nothing"),
        (("strands.disco.a", "strands.disco.z"), "'z'"),
        (("*+Disco", "*+Dosco"), "no row is called"),
        (("seeds = 2\n[[tuning", "seeds = 0\n[[tuning"), "tuning.seeds must be 1 or more"),
        (('rule = "test"', "validation = 1.5"), "tuning.validation must be a share"),
        (('rule = "test"', 'metric = "last"'), "tuning by validation needs a metric of validation samples"),
        (('rule = "test"', 'rule = "guess"'), "tuning.rule must be one of"),
        ((GRID, "[tuning]\ngrids = []\n"), "tuning.grids is empty"),
        ((GRID, UNEVEN), r"different budgets: grids\[0\] has 2, grids\[1\] has 3 candidates"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_mistakes_are_refused(changed, told, tmp_path):
    with pytest.raises(UserError, match=told):
        loaded(tmp_path, GRID.replace(*changed))


def call(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["fedbraid", "study", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code or 0, capsys.readouterr()


def test_a_study_tunes_and_then_runs_what_it_chose(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny = written(tmp_path, PLAIN + GRID)
    recipe = recipe_files.load(Path(tiny))
    cell = ("FedAvg+Disco", "skewed")
    made = tuned(table(recipe), Path("results"))
    assert made.cells[cell].waits_for and not made.cells["FedAvg", "skewed"].waits_for
    assert sum("a = 2.0" in run.cells[0] for run in planned([made])) == 2, "two seeds of each candidate"
    code, said = call(monkeypatch, capsys, "run", tiny, "--shard", "1/2")
    assert code == 3 and "1 cells wait for candidates of tuning" in said.err
    code, said = call(monkeypatch, capsys, "run", tiny)
    assert code == 0, said.err
    scores = {}
    for one in candidates(recipe, table(recipe).cells[cell]):
        runs = [run_records.read(Path("results"), digest(one.cell.config), seed) for seed in (0, 1)]
        scores[one.values["strands.disco.a"]] = sum(run.series["accuracy"][-1] for run in runs)
    best = max(scores, key=lambda a: scores[a])
    told = (
        f"disco.a = {best}, optimizer.lr = 0.05: the best of 2 candidates on the test set, as the paper did (last, 2 se"
    )
    assert f"tuned: {told}" in said.err
    settled = tuned(table(recipe), Path("results")).cells[cell]
    assert settled.config.strands["disco"]["a"] == best and told in settled.choice
    assert f"FedAvg+Disco @ skewed, tuned: {told}" in Path("results/tiny/table.md").read_text().replace("\\", "")
    [file] = Path("results/tuned").iterdir()
    choice = read_choice(Path("results"), file.stem)
    assert {score["values"]["strands.disco.a"]: score["score"] for score in choice.scores} == {
        a: pytest.approx(score / 2) for a, score in scores.items()
    }
    assert not choose(tuned(table(recipe), Path("results")), Path("results")), "a choice once made stays"
    count = len(run_records.all_in(Path("results")))
    call(monkeypatch, capsys, "run", tiny)
    assert len(run_records.all_in(Path("results"))) == count
    told = json.loads(Path("results/tiny/results.json").read_text())
    assert [one["tuned"] != "" for one in told["cells"]].count(True) == 1
    file.write_text("{}")
    with pytest.raises(UserError, match="is not a choice of tuning"):
        tuned(table(recipe), Path("results"))
