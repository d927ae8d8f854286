from __future__ import annotations

import math
from dataclasses import replace

import pytest
from made_up_runs import regression, run

from fedbraid.errors import UserError
from fedbraid.report.headline import caveats, headline
from fedbraid.report.run_settings import flattened, setting_rows


def seeds(label: str, *lasts: float) -> list:  # type: ignore[type-arg]
    return [run(label, [last], seed) for seed, last in enumerate(lasts)]


def test_best_against_the_first_listed() -> None:
    runs = seeds("fedavg", 0.50, 0.52) + seeds("prox", 0.6, 0.62) + seeds("disco", 0.70, 0.72)
    assert headline(runs) == (
        "disco is best with 71.00 ± 1.41 % accuracy after the last round (mean of 2 seeds), "
        "20.00 points above fedavg, the first listed."
    )
    assert caveats(runs) == []


def test_the_first_listed_is_best() -> None:
    runs = seeds("fedavg", 0.70, 0.72) + seeds("disco", 0.5, 0.51) + seeds("prox", 0.6, 0.61)
    assert headline(runs).endswith("10.50 points above prox, the next best.")


def test_close_calls_are_called_close() -> None:
    runs = seeds("fedavg", 0.1, 0.12) + seeds("prox", 0.5, 0.6) + seeds("disco", 0.52, 0.62)
    assert caveats(runs) == ["Within one standard deviation of disco, so not told apart by these seeds: prox."]


def test_one_seed_is_said() -> None:
    assert caveats([run("a", [0.5]), run("b", [0.6])]) == ["One seed: no spread known."]
    mixed = caveats([*seeds("a", 0.1, 0.2), *seeds("b", 0.9)])
    assert mixed == [
        "One seed for b: no spread known there.",
        "The methods did not run with the same seeds: a 0, 1; b 0.",
    ]


def test_a_single_run() -> None:
    assert headline([run("fedavg", [0.4, 0.5])]) == "fedavg ends with 50.00 % accuracy after the last round (one seed)."


def test_a_tie() -> None:
    assert headline([run("a", [0.5]), run("b", [0.5])]).startswith("a and b end alike, with 50.00 % accuracy")


def test_regression_reads_the_other_way() -> None:
    told = headline([regression("a", [3.0]), regression("b", [2.5])])
    assert told == "b is best with a loss of 2.5 after the last round (one seed), 0.5 below a, the first listed."


def test_diverged_and_not_yet_evaluated() -> None:
    lost = regression("lost", [math.nan])
    assert headline([lost]) == "Every method diverged."
    assert headline([lost, regression("b", [1.0])]).startswith("b is the only method with a result")
    assert "Diverged, with a last score that is no number: lost." in caveats([lost, regression("b", [1.0])])
    assert headline([run("a", [None])]) == "No round has been evaluated yet."
    assert caveats([run("a", [None])]) == ["One seed: no spread known."]


def test_unequal_rounds_and_tasks() -> None:
    short = run("a", [0.5])
    long = run("b", [0.5, 0.6])
    other = replace(long, settings=long.settings | {"data": {"name": "mnist"}})
    told = caveats([short, other])
    assert "The runs have not all done the same number of rounds: a 1, b 2." in told
    assert "Not like for like: the methods differ in data.name." in told


def test_settings_say_who_differs() -> None:
    chosen, left = setting_rows([run("a", [0.5], 0), run("a", [0.5], 1), run("b", [0.5], 0), run("b", [0.5], 1)])
    rows = dict(chosen)
    assert dict(left) == {"data.name": "digits"}
    assert rows["partition.seed"] == "0, 1"
    assert rows["method"] == "a; b"
    assert flattened({"x": {"y": [1, 2], "z": {}}, "on": True}) == {"x.y": "[1, 2]", "x.z": "{}", "on": "true"}


def test_settings_that_are_the_defaults_are_apart() -> None:
    """Of what the runs name, too: a data set's options, the optimiser's and a strand's."""
    settings = {
        "method": "fedavg+disco",
        "rounds": 30,
        "data": {"name": "digits"},
        "partition": {"name": "dirichlet", "clients": 7, "beta": 0.1},
        "optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.0},
        "strands": {"disco": {"a": 0.5, "b": 0.2}},
    }
    chosen, left = setting_rows([replace(run("x", [0.5]), settings=settings)])
    assert [key for key, _ in chosen] == ["method", "partition.beta", "optimizer.lr", "strands.disco.b"]
    assert {key for key, _ in left} >= {"rounds", "data.name", "optimizer.momentum", "strands.disco.a"}


def test_no_runs() -> None:
    with pytest.raises(UserError):
        headline([])
