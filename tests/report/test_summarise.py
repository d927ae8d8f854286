from __future__ import annotations

import math

import pytest
from made_up_runs import entry, regression, run

from fedbraid.errors import UserError
from fedbraid.report.summaries import across, by_method, summarise


def test_a_run_by_hand() -> None:
    summary = summarise(run("fedavg", [0.1, None, 0.5, 0.4]).rounds, target=0.4)
    assert summary["metric"] == "accuracy"
    assert (summary["rounds"], summary["evaluated"]) == (4, 3)
    assert (summary["best"], summary["best_round"]) == (0.5, 3)
    assert (summary["last"], summary["last_round"]) == (0.4, 4)
    assert summary["mean_last5"] == pytest.approx(1.0 / 3)
    assert summary["rounds_to_target"] == 3
    assert (summary["bytes_down"], summary["bytes_up"]) == (4_000_000, 2_000_000)
    assert (summary["forward_samples"], summary["backward_samples"], summary["seconds"]) == (80, 40, 2.0)


def test_last_means_count_evaluated_rounds_only() -> None:
    scores = [score for number in range(1, 13) for score in (number / 100, None)]
    summary = summarise(run("fedavg", scores).rounds)
    assert summary["mean_last5"] == pytest.approx((8 + 9 + 10 + 11 + 12) / 500)
    assert summary["mean_last10"] == pytest.approx(sum(range(3, 13)) / 1000)
    assert (summary["last"], summary["last_round"]) == (0.12, 23)


def test_the_earliest_of_equal_bests() -> None:
    assert summarise(run("fedavg", [0.2, 0.6, 0.6]).rounds)["best_round"] == 2


def test_a_target_never_reached() -> None:
    assert summarise(run("fedavg", [0.2, 0.6]).rounds, target=0.61)["rounds_to_target"] is None


def test_a_target_in_per_cent_is_a_mistake() -> None:
    with pytest.raises(UserError, match="for 70 %"):
        summarise(run("fedavg", [0.2]).rounds, target=70)


@pytest.mark.parametrize("rounds", [(), (entry(1), entry(2))])
def test_nothing_evaluated(rounds: tuple[dict[str, object], ...]) -> None:
    summary = summarise(rounds, target=0.5)
    assert summary["metric"] is None
    assert [summary[key] for key in ("best", "best_round", "last", "mean_last5", "rounds_to_target")] == [None] * 5
    assert summary["seconds"] == 0.5 * len(rounds)


def test_regression_is_best_at_its_lowest_loss() -> None:
    summary = summarise(regression("fedavg", [9.0, 2.0, None, 3.0]).rounds, target=3.0)
    assert summary["metric"] == "loss"
    assert (summary["best"], summary["best_round"], summary["last"]) == (2.0, 2, 3.0)
    assert summary["rounds_to_target"] == 2


def test_a_diverged_run_does_not_hide() -> None:
    summary = summarise(regression("fedavg", [2.0, math.inf, math.nan]).rounds)
    assert summary["best"] == 2.0
    assert math.isnan(summary["last"])
    assert math.isnan(summary["mean_last5"])
    averaged = across([summary, summarise(regression("fedavg", [1.0]).rounds)])
    assert math.isnan(averaged["last"]["mean"])
    assert math.isnan(averaged["last"]["std"])


def test_across_seeds_by_hand() -> None:
    lasts = [0.5, 0.6, 0.8]
    averaged = across([summarise(run("fedavg", [0.1, last]).rounds, target=0.6) for last in lasts])
    assert averaged["seeds"] == 3
    assert averaged["last"]["mean"] == pytest.approx(1.9 / 3)
    # Deviations from the mean 0.6333: -0.1333, -0.0333, 0.1667; squares sum to 0.046667; over n - 1 = 2.
    assert averaged["last"]["std"] == pytest.approx(math.sqrt(0.0466667 / 2), rel=1e-5)
    assert averaged["bytes_down"] == {"mean": 2_000_000, "std": 0, "n": 3}
    reached = averaged["rounds_to_target"]
    assert (reached["mean"], reached["reached"], reached["of"]) == (2, 2, 3)


def test_one_seed_has_no_spread() -> None:
    averaged = across([summarise(run("fedavg", [0.1]).rounds)])
    assert averaged["last"] == {"mean": 0.1, "std": None, "n": 1}


def test_methods_keep_their_order_and_their_seeds() -> None:
    methods = by_method([run("b", [0.1], 0), run("a", [0.2], 0), run("b", [0.3], 1)])
    assert {label: method["seeds"] for label, method in methods.items()} == {"b": 2, "a": 1}
    assert list(methods) == ["b", "a"]


def test_no_runs_and_unlike_runs_are_mistakes() -> None:
    with pytest.raises(UserError, match="no run"):
        by_method([])
    with pytest.raises(UserError, match="no summary"):
        across([])
    with pytest.raises(UserError, match="one task"):
        by_method([run("a", [0.1]), regression("b", [1.0])])


def test_what_a_model_that_is_not_finite_hits_is_no_score() -> None:
    """It says one class to everything, and where that class is frequent it would win."""
    begun, lost = run("fedavg", [0.5, 0.6]).rounds, run("fedavg", [0.9, 0.9, 0.9, 0.9], finite=False).rounds[2:]
    summary = summarise(begun + lost, target=0.8)
    assert (summary["best"], summary["best_round"], summary["diverged"]) == (0.6, 2, 3)
    assert math.isnan(summary["last"]) and math.isnan(summary["mean_last5"])
    assert summary["rounds_to_target"] is None
    assert summarise(begun)["diverged"] is None


def held_out(tests: list[float | None], validation: list[float | None], **changes: object) -> list[dict[str, object]]:
    pairs = enumerate(zip(tests, validation, strict=True), start=1)
    return [entry(n, test, validation_accuracy=held, validation_loss=None, **changes) for n, (test, held) in pairs]


def test_validation_chooses_the_round_and_the_test_set_says_its_worth() -> None:
    summary = summarise(held_out([0.9, 0.5, None, 0.6, 0.7], [0.2, 0.8, None, 0.8, 0.4]), target=0.7)
    assert (summary["best"], summary["best_round"]) == (0.9, 1)
    assert (summary["chosen"], summary["chosen_round"], summary["chosen_validation"]) == (0.5, 2, 0.8)
    assert summary["last_validation"] == 0.4 and summary["rounds_to_target"] == 2


def test_of_a_loss_validation_chooses_the_lowest() -> None:
    lines = [
        entry(n, loss=loss, validation_loss=held) for n, loss, held in [(1, 3.0, 9.0), (2, 2.0, 1.0), (3, 1.0, 2.0)]
    ]
    summary = summarise(lines)
    assert (summary["best_round"], summary["chosen_round"], summary["chosen"]) == (3, 2, 2.0)


def test_only_a_round_that_was_tested_is_chosen() -> None:
    summary = summarise(held_out([None, 0.5], [0.9, 0.4]))
    assert (summary["chosen_round"], summary["chosen"]) == (2, 0.5)


def test_a_model_that_is_not_finite_is_not_chosen() -> None:
    lines = held_out([0.3, 0.9], [0.3, 0.9])
    lines[1]["finite"] = False
    assert summarise(lines)["chosen_round"] == 1
    lines[0]["finite"] = False
    told = summarise(lines)
    assert told["chosen_round"] is None and math.isnan(told["chosen"])


def test_over_seeds_what_was_chosen_has_a_spread() -> None:
    told = across([summarise(held_out([test], [0.5])) for test in (0.2, 0.4)])
    assert told["chosen"]["mean"] == pytest.approx(0.3) and told["chosen"]["n"] == 2
    assert "chosen" not in across([summarise(run("fedavg", [0.5]).rounds)])
