"""Analyses of logs alone, made up to be known whole: what accuracy costs, and what noise buys."""

import json
import math

import pytest

import fedbraid as fb
from fedbraid.analyses import analyze, headline
from fedbraid.config.schema import from_dict, to_toml
from fedbraid.privacy import budget as privacy

SCORES = [0.1, None, 0.5, 0.4, 0.7]


def log(place, method="fedavg", scores=SCORES, metric="accuracy", **settings):
    """A run directory with a configuration and a log, and nothing that could be trained."""
    place.mkdir()
    config = from_dict({"method": method, "rounds": len(scores), **settings})
    (place / "config.toml").write_text(to_toml(config))
    cost = {"bytes_down": 100, "bytes_up": 50, "forward_samples": 20, "backward_samples": 10, "seconds": 0.5}
    lines = [{"round": k, "accuracy": None, "loss": None, metric: s} | cost for k, s in enumerate(scores, start=1)]
    (place / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


def test_what_was_spent_in_all_and_until_the_target(tmp_path):
    place = log(tmp_path / "run")
    total = {"rounds": 5, "aggregations": 5, "bytes": 750, "forward_samples": 100, "seconds": 2.5}
    assert headline(place, ["cost"]) == {f"cost.{key}": value for key, value in total.items()}
    by_target = headline(place, ["cost(target=0.45)"])  # first reached in round 3
    reached = {"rounds": 3, "aggregations": 3, "bytes": 450, "forward_samples": 60, "seconds": 1.5}
    assert {key: by_target[f"cost.{key}_to_target"] for key in reached} == reached
    assert math.isnan(headline(place, ["cost(target=0.9)"])["cost.bytes_to_target"])


def test_the_target_is_the_runs_own_where_none_is_given(tmp_path):
    place = log(tmp_path / "run", evaluate={"target": 0.6})
    assert headline(place, ["cost"])["cost.rounds_to_target"] == 5


def test_a_loss_falls_to_its_target(tmp_path):
    place = log(tmp_path / "run", scores=[3.0, 2.0, 1.0], metric="loss")
    assert headline(place, ["cost(target=2.5)"])["cost.rounds_to_target"] == 2
    (analysis,) = analyze(place, ["cost"])
    assert analysis.table["loss"].tolist() == [3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("skip", "expected"),
    [
        ({"every": 2, "final_aggregate": True}, [0, 1, 1, 2, 3]),
        ({"every": 2, "final_aggregate": False}, [0, 1, 1, 2, 2]),
        ({"every": 5, "final_aggregate": True}, [0, 0, 0, 0, 1]),
        ({"every": 1, "final_aggregate": True}, [1, 2, 3, 4, 5]),
    ],
)
def test_fedskip_averages_less_often_than_it_moves_models(tmp_path, skip, expected):
    (analysis,) = analyze(log(tmp_path / "run", "skip", strands={"skip": skip}), ["cost"])
    assert analysis.table["aggregations"].tolist() == expected


def test_aggregations_are_counted_as_the_server_steps(tmp_path):
    """A real run: its model moves in exactly those rounds that are counted."""
    watch = {"analyses": ["drift"], "analysis": {"every": 1}}
    done = fb.run("skip(every=3)", rounds=7, out=tmp_path, engine={"device": "cpu"}, **watch)
    (analysis,) = analyze(tmp_path, ["cost"])
    stepped = [line["drift.step"] > 0 for line in done.rounds]
    assert analysis.table["aggregations"].diff().fillna(0).tolist() == [float(s) for s in stepped]
    numbers, summary = analysis.numbers, done.summary
    assert numbers["cost.bytes"] == summary["bytes_down"] + summary["bytes_up"]
    assert numbers["cost.forward_samples"] == summary["forward_samples"]
    assert numbers["cost.seconds"] == pytest.approx(summary["seconds"])


def test_several_runs_side_by_side(tmp_path):
    places = [log(tmp_path / "a"), log(tmp_path / "b", "skip"), log(tmp_path / "c", seed=1)]
    (analysis,) = analyze(places, ["cost"])
    assert list(analysis.table["run"].unique()) == ["fedavg seed 0", "skip seed 0", "fedavg seed 1"]
    assert analysis.numbers["cost.rounds/fedavg seed 1"] == 5
    (analysis,) = analyze(places[:2], ["cost"])
    assert list(analysis.table["run"].unique()) == ["fedavg", "skip"]
    same = [log(tmp_path / "d"), log(tmp_path / "e")]
    (analysis,) = analyze(same, ["cost"])
    assert list(analysis.table["run"].unique()) == [str(place) for place in same]


def test_runs_of_different_tasks_are_not_compared(tmp_path):
    places = [log(tmp_path / "a"), log(tmp_path / "b", scores=[1.0], metric="loss")]
    with pytest.raises(fb.UserError, match="one task at a time"):
        analyze(places, ["cost"])


def noisy(tmp_path, noise, method="rfedavg_plus"):
    scores = [0.2, 0.8 - noise / 10]
    return log(tmp_path / f"{method}-{noise}", method, scores, strands={method: {"noise": noise}})


def test_noise_and_what_it_buys(tmp_path):
    places = [noisy(tmp_path, noise) for noise in (2.0, 0.0, 1.0)]
    (analysis,) = analyze(places, ["privacy"])
    table = analysis.table
    assert table["noise"].tolist() == [0.0, 1.0, 2.0]
    assert table["accuracy"].tolist() == pytest.approx([0.8, 0.7, 0.6])
    epsilons = table["epsilon"].tolist()
    assert epsilons == [math.inf, privacy.spent(1.0, 2), privacy.spent(2.0, 2)]  # one release a round
    assert epsilons == sorted(epsilons, reverse=True)
    assert table["delta"].tolist()[1:] == [privacy.DELTA] * 2


def test_a_client_that_releases_before_its_first_training_too_pays_for_it(tmp_path):
    assert headline(noisy(tmp_path, 1.0, "rfedavg"), ["privacy"]) == {
        "privacy.noise": 1.0,
        "privacy.epsilon": privacy.spent(1.0, 3),
        "privacy.accuracy": pytest.approx(0.7),
    }


def test_noise_is_written_with_its_epsilon(tmp_path):
    (analysis,) = analyze(noisy(tmp_path, 1.0), ["privacy"])
    written = analysis.figure.axes[0].get_xticklabels()[0].get_text()
    assert written == f"σ = 1\nε = {privacy.spent(1.0, 2):.3g}"


def test_what_the_log_says_was_spent_on_whole_clients_is_taken_from_there(tmp_path):
    run = fb.run("dp", rounds=2, sampling={"clients": 3}, out=tmp_path / "run", evaluate={"every": 2})
    assert headline(tmp_path / "run", ["privacy"])["privacy.epsilon"] == run.summary["privacy"]["dp"]["epsilon"]
    assert run.summary["privacy"]["dp"]["epsilon"] < privacy.spent(1.0, 2)
