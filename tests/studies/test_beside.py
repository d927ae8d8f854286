"""Metrics whose target another row of the table sets: FedSkip's fourth table."""

import math

import pytest

from fedbraid.config.schema import to_dict
from fedbraid.errors import UserError
from fedbraid.studies import recipe_files, run_records
from fedbraid.studies.cell_metrics import parse
from fedbraid.studies.run_digest import digest
from fedbraid.studies.run_records import record_of
from fedbraid.studies.study_plan import table
from fedbraid.studies.study_summary import ours, summarise_study
from fedbraid.studies.table_results import gathered

RECIPE = """
paper = "made up"
item = "Table 1"
title = "Who is as good as FedAvg when"
metric = "best"
unit = ""
seeds = 2

[base]
rounds = 4

[[columns]]
name = "rounds"
metric = "rounds_to(row='FedAvg')"
[[columns]]
name = "aggregations"
metric = "aggregations_to(row='FedAvg')"
[[columns]]
name = "speedup"
metric = "speedup(row='FedAvg')"

[[rows]]
name = "FedAvg"
set = { method = "fedavg" }
[[rows]]
name = "FedSkip-2"
set = { method = "fedskip(every=2, final_aggregate=false)" }
"""

ACCURACIES = {
    ("FedAvg", 0): (0.1, 0.2, 0.3, 0.4),
    ("FedAvg", 1): (0.1, 0.5, 0.2, 0.2),
    ("FedSkip-2", 0): (None, 0.4, None, 0.6),
    ("FedSkip-2", 1): (None, 0.3, None, 0.4),
}


@pytest.fixture
def made(tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    return table(recipe_files.load(tmp_path / "tiny.toml"))


def record(made, row, seed, out):
    config = made.cells[row, "rounds"].config
    spent = {"bytes_down": 1, "bytes_up": 1, "forward_samples": 1, "backward_samples": 1, "seconds": 1.0}
    lines = [{"round": k + 1, "accuracy": a, "finite": True, **spent} for k, a in enumerate(ACCURACIES[row, seed])]
    run_records.write(out, record_of(digest(config), to_dict(config) | {"seed": seed}, lines, None, {}, {}))


def values(made, out):
    return {place: dict(cell.values) for place, cell in gathered(made, out).cells.items()}


def test_each_seed_is_measured_by_its_own_run_of_the_other_row(made, tmp_path):
    for row, seed in ACCURACIES:
        record(made, row, seed, tmp_path)
    assert values(made, tmp_path) == {
        ("FedAvg", "rounds"): {0: 4, 1: 2},
        ("FedAvg", "aggregations"): {0: 4, 1: 2},
        ("FedAvg", "speedup"): {0: 1, 1: 1},
        ("FedSkip-2", "rounds"): {0: 2, 1: math.inf},
        ("FedSkip-2", "aggregations"): {0: 1, 1: math.inf},
        ("FedSkip-2", "speedup"): {0: 2, 1: 0},
    }


def test_a_speedup_says_how_many_runs_got_there(made, tmp_path):
    for row, seed in ACCURACIES:
        record(made, row, seed, tmp_path)
    told = summarise_study(made.recipe, gathered(made, tmp_path))
    assert ours(told.entries["FedSkip-2", "speedup"], 2, 2) == "1.00 ± 1.41 (1/2 reached)"
    assert ours(told.entries["FedAvg", "speedup"], 2, 2) == "1.00 ± 0.00"
    assert "(2/3 reached), of a speedup: a run that never got there counts as 0" in told.notes


def test_without_the_other_row_there_is_no_number(made, tmp_path):
    for seed in (0, 1):
        record(made, "FedSkip-2", seed, tmp_path)
    record(made, "FedAvg", 1, tmp_path)
    found = gathered(made, tmp_path).cells["FedSkip-2", "rounds"]
    assert dict(found.values) == {1: math.inf} and found.missing == (0,) and set(found.records) == {0, 1}


def test_of_losses_the_best_is_the_least(made, tmp_path):
    record(made, "FedAvg", 0, tmp_path)
    one = run_records.read(tmp_path, digest(made.cells["FedAvg", "rounds"].config), 0)
    falling = type(one)(**{**vars(one), "series": {**one.series, "loss": [3.0, 2.0, 1.0, 2.0]}})
    metric = parse("rounds_to(row='FedAvg', of='loss')")
    assert metric.read(falling) is None and metric.given(falling).read(falling) == 3
    assert not metric.higher_is_better and parse("speedup(row='FedAvg')").higher_is_better
    empty = type(one)(**{**vars(one), "series": {"round": [1], "finite": [True]}})
    assert parse("rounds_to(row='FedAvg')").given(empty).read(one) is None


@pytest.mark.parametrize("text", ["rounds_to", "rounds_to(target=0.5, row='FedAvg')"])
def test_a_target_or_a_row(text):
    with pytest.raises(UserError, match=r"rounds_to\(target=0\.55\), or the row whose best it is"):
        parse(text)


def test_the_row_must_be_there(tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE.replace("speedup(row='FedAvg')", "speedup(row='FedAvgs')"))
    with pytest.raises(UserError, match="no row is called 'FedAvgs'; did you mean 'FedAvg'"):
        recipe_files.load(tmp_path / "tiny.toml")
