"""Evidence beside a number, against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from made_up_study import COURSES, recipe, record, results

from fedbraid.config.schema import from_dict
from fedbraid.studies.cell_evidence import BOTH, WEIGHTS, cost, equivalence, mean_and_spread, readings, spread_of
from fedbraid.studies.cell_metrics import parse


def cell():
    return results().cells["FedAvg", "β = 0.5"]


def test_three_readings_of_the_same_runs():
    found = readings(parse("at(round=2)"), cell().records)
    assert found["best"] == [0.66, 0.65, 0.655] and found["last"] == [0.66, 0.65, 0.655]
    assert found["mean_last(n=10)"] == pytest.approx([1.71 / 3, 1.67 / 3, 1.665 / 3])


def test_what_is_no_score_has_no_readings_and_a_diverged_run_none():
    assert readings(parse("total(of='bytes_up')"), cell().records) == {}
    assert readings(parse("skew(name=kl)"), cell().records) == {}
    (first, *_), runs = COURSES["FedAvg", "β = 0.5"].values(), dict(cell().records)
    lost = record(cell().settings, 1, first)
    runs[1] = replace(lost, series={**lost.series, "finite": [True, False, False]})
    assert [len(values) for values in readings(parse("best"), runs).values()] == [3, 2, 2]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([60.0, 60.2, 60.6], "open"),  # 59.51 to 61.03
        ([60.0, 60.2, 60.4], "same"),  # 59.70 to 60.70
        ([66.0, 65.0, 65.5], "differs"),  # 64.26 to 66.74
        ([58.0, 58.5, 57.5], "open"),  # 56.76 to 59.24, whose end is within
        ([60.0], "open"),
        ([60.0, math.nan, 60.0], "open"),
    ],
)
def test_equivalence_asks_where_the_whole_interval_lies(values, said):
    assert equivalence(values, 60.0, 1.0) == said


def test_a_wider_margin_decides_more():
    assert equivalence([60.0, 60.2, 60.6], 60.0, 1.03) == "same"
    assert equivalence([66.0, 65.0, 65.5], 60.0, 5.0) == "open"


def test_what_the_spread_is_of():
    def of(**partition):
        return spread_of(from_dict({"partition": partition}))

    assert of(name="dirichlet") == BOTH and of(name="natural", clients=5) == BOTH
    assert of(name="natural") == WEIGHTS and of(name="natural", clients=5, choose="largest") == WEIGHTS
    assert of(name="assignment", path="split.csv") == WEIGHTS


def test_cost_counts_a_run_once_and_processors_apart():
    runs = [*cell().records.values()]
    on_gpu = replace(runs[0], seed=7, engine={"device": "cuda:0"}, environment={"gpu": "NVIDIA H200"})
    found = cost([*runs, *runs, on_gpu])
    assert found == {"runs": 4, "seconds": {"CPU": 279.0, "NVIDIA H200": 90.0}}  # 3 · (30 + 31 + 32)
    assert cost([]) == {"runs": 0, "seconds": {}}


def test_mean_and_spread():
    assert mean_and_spread([]) is None
    assert mean_and_spread([0.5]) == {"mean": 0.5, "std": None}
    assert mean_and_spread([1.0, 2.0, 3.0]) == {"mean": 2.0, "std": 1.0}


def test_a_recipe_has_a_margin():
    assert recipe().equivalence == 1.0
