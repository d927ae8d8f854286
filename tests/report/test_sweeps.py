"""Scores against the numbers that were varied."""

from dataclasses import replace

import numpy as np
import pytest
from made_up_runs import run

from fedbraid.report.run_report import pictures
from fedbraid.report.sweep_figures import sweep, sweeps


def tried(method, lr, accuracy, seed=0, **others):
    made = run(f"{method} lr={lr}", [accuracy], seed)
    varied = ["optimizer.lr", *(f"optimizer.{key}" for key in others)]
    return replace(
        made, settings=made.settings | {"method": method, "optimizer": {"lr": lr, **others}, "varied": varied}
    )


def test_runs_of_one_method_are_points_of_a_line():
    records = [tried("a", lr, score, seed) for lr in (1.0, 0.1, 0.01) for seed, score in ((0, lr / 2), (1, lr / 4))]
    (found,) = sweeps(records)
    assert found.key == "optimizer.lr" and found.name == "lr"
    assert found.lines == {"a": {0.01: [0.005, 0.0025], 0.1: [0.05, 0.025], 1.0: [0.5, 0.25]}}


def test_other_settings_that_differ_make_other_lines():
    records = [tried(m, lr, 0.5, name=b) for m in "ab" for lr in (0.3, 0.1, 0.03) for b in ("sgd", "adam")]
    (found,) = sweeps(records)
    assert list(found.lines) == ["a name=sgd", "a name=adam", "b name=sgd", "b name=adam"]


def test_keys_that_end_alike_are_told_whole():
    made = [run("a", [0.5]) for _ in range(9)]
    for k, record in enumerate(made):
        some = {
            "partition": {"clients": 3 + k % 3},
            "sampling": {"clients": k // 3},
            "varied": ["partition.clients", "sampling.clients"],
        }
        record.settings.update(some)
    assert [found.name for found in sweeps(made)] == ["partition.clients", "sampling.clients"]
    assert list(sweeps(made)[0].lines) == ["a sampling.clients=0", "a sampling.clients=1", "a sampling.clients=2"]


def test_two_values_or_other_methods_make_no_line():
    assert not sweeps([tried("a", 0.1, 0.5), tried("a", 0.2, 0.5)])
    assert not sweeps([tried("a", 0.1, 0.5), tried("b", 0.2, 0.5), tried("c", 0.3, 0.5)])
    assert not sweeps([run("a", [0.5], seed) for seed in range(4)])
    assert not sweeps([tried("a", lr, None) for lr in (0.1, 0.2, 0.3)])


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ((0.01, 0.1, 1.0), "log"),
        ((1.0, 2.0, 3.0), "linear"),
        ((0.0, 1.0, 50.0), "symlog"),
        ((-1.0, 0.0, 50.0), "linear"),
    ],
)
def test_the_picture_has_every_mean_and_a_gap_where_it_diverged(values, scale):
    scores = {values[0]: [0.2, 0.4], values[1]: [0.5, 0.7], values[2]: [0.1, 0.3]}
    records = [tried("a", lr, score, seed) for lr, some in scores.items() for seed, score in enumerate(some)]
    records[-1].rounds[-1]["finite"] = False
    figure = sweep(sweeps(records)[0], "accuracy")
    (axes,) = figure.axes
    line = axes.get_lines()[0]
    np.testing.assert_allclose(line.get_xydata(), [[values[0], 30.0], [values[1], 60.0], [values[2], np.nan]])
    assert axes.get_xscale() == scale and axes.get_xlabel() == "optimizer.lr"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [f"{value:g}" for value in values]


def test_a_report_has_the_picture():
    records = [tried("a", lr, 0.5) for lr in (0.3, 0.1, 0.03)]
    assert "vary-lr" in [picture.name for picture in pictures(records)]
