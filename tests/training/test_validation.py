"""Training samples held out to validate on: nobody trains on them, and what they say of a model can be checked."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import federation, toy
from typer.testing import CliRunner

import fedbraid as fb
from fedbraid import data
from fedbraid.analyses import analyze
from fedbraid.cli.app import app
from fedbraid.data.noise import noisy
from fedbraid.data.validation import divided
from fedbraid.report.headline import caveats
from fedbraid.report.run_table import comparison

pytestmark = pytest.mark.usefixtures("not_rendered")
SIZES = (30, 1, 12, 17, 8)
DATA, PARTITION = toy(SIZES)
HELD = {"evaluate": {"validation": 0.25}}
TINY = {
    "data": DATA,
    "partition": PARTITION,
    "model": "logistic",
    "rounds": 4,
    "local": {"batch": 4},
    "optimizer": {"lr": 0.3},
    "engine": {"device": "cpu"},
}


def timeless(lines):
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


# --- what is held out


def test_nobody_trains_on_what_is_held_out_and_everything_else_is_trained_on():
    whole = federation("fedavg", data=(DATA, PARTITION))
    apart = federation("fedavg", data=(DATA, PARTITION), **HELD)
    assert whole.validation is None
    expected = divided(PARTITION, DATA.train.y, 0.25, seed=0)
    trained = set(apart.clients.order.tolist())
    assert trained == set(whole.clients.order.tolist()) - set(expected.validation.tolist())
    held = torch.as_tensor(DATA.train.x[expected.validation])
    assert torch.equal(apart.validation.x, held) and len(held) + len(trained) == sum(SIZES)
    assert apart.sizes.tolist() == expected.training.sizes.tolist() != whole.sizes.tolist()
    assert apart.fingerprint != whole.fingerprint


def test_what_is_held_out_does_not_reach_the_model():
    """Other inputs and labels in its place change what is said of the model, and nothing of the model."""
    held = divided(PARTITION, DATA.train.y, 0.25, seed=0).validation
    x = DATA.train.x.copy()
    x[held] = x[held][::-1] + 5
    other = replace(DATA, train=fb.Split(x, DATA.train.y))
    one, two = (fb.run("scaffold+disco", **TINY | {"data": each}, **HELD) for each in (DATA, other))
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))
    assert [line["loss"] for line in one.rounds] == [line["loss"] for line in two.rounds]
    assert [line["validation_loss"] for line in one.rounds] != [line["validation_loss"] for line in two.rounds]


def test_a_clients_noise_is_on_what_it_holds_out():
    dataset = data.load("digits", samples=200)
    partition = data.make_partition(dataset, "noise", 4, 0)
    apart = federation("fedavg", data=(dataset, partition), **HELD)
    held = divided(partition, dataset.train.y, 0.25, seed=0).validation
    shown, noiseless = (
        (x[held] - dataset.mean[0]) / dataset.std[0] for x in (noisy(dataset, partition).x, dataset.train.x)
    )
    assert np.allclose(apart.validation.x.numpy(), shown, atol=1e-5) and not np.allclose(shown, noiseless, atol=1)


# --- what it says


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_score_is_that_of_the_model_on_the_held_out_samples(task):
    dataset, partition = toy(SIZES, task=task)
    run = fb.run("fedavg", **TINY | {"data": dataset, "partition": partition}, **HELD)
    held = divided(partition, dataset.train.y, 0.25, seed=0).validation
    x, y = torch.as_tensor(dataset.train.x[held]).float(), torch.as_tensor(dataset.train.y[held])
    with torch.no_grad():
        answers = run.model(x)
    line = run.rounds[-1]
    if task == "classification":
        assert line["validation_accuracy"] == pytest.approx((answers.argmax(-1) == y).double().mean().item())
        assert line["validation_loss"] == pytest.approx(torch.nn.functional.cross_entropy(answers, y).item(), abs=1e-5)
    else:
        assert line["validation_accuracy"] is None
        assert line["validation_loss"] == pytest.approx(((answers[:, 0] - y) ** 2).mean().item() / 2, abs=1e-5)


def test_it_is_there_in_evaluated_rounds_and_only_where_it_was_asked_for():
    run = fb.run("fedavg", **TINY, evaluate={"validation": 0.25, "every": 3})
    keys = "validation_accuracy", "validation_loss"
    assert [[line[key] is None for key in keys] for line in run.rounds] == [
        [True] * 2,
        [True] * 2,
        [False] * 2,
        [False] * 2,
    ]
    plain = fb.run("fedavg", **TINY)
    assert not {*keys} & {key for line in plain.rounds for key in line}
    assert not {key for key in plain.summary if "chosen" in key or "validation" in key}


def test_runs_that_train_together_validate_as_alone():
    together = fb.compare("fedavg", seeds=3, **TINY, **HELD)
    for run in together.runs:
        alone = fb.run("fedavg", seed=run.config.seed, **TINY, **HELD)
        assert [line["validation_loss"] for line in run.rounds] == pytest.approx(
            [line["validation_loss"] for line in alone.rounds], abs=1e-5
        )
    assert len({run.rounds[-1]["validation_loss"] for run in together.runs}) == 3


def test_on_round_may_stop_by_it():
    best = fb.run("fedavg", **TINY, **HELD).rounds[1]["validation_accuracy"]

    def enough(line, config):
        return fb.STOP if line["validation_accuracy"] >= best else None

    assert len(fb.run("fedavg", **TINY, **HELD, on_round=enough).rounds) <= 2


# --- what is made of it


def test_the_chosen_round_is_best_on_validation_and_scored_on_the_test_set():
    run = fb.run("fedavg", **TINY | {"rounds": 12}, **HELD)
    scores = [line["validation_accuracy"] for line in run.rounds]
    first = int(np.argmax(scores))
    assert run.summary["chosen_round"] == first + 1 and run.summary["chosen_validation"] == max(scores)
    assert run.summary["chosen"] == run.rounds[first]["accuracy"] and run.summary["last_validation"] == scores[-1]


def test_the_target_is_one_for_validation():
    run = fb.run("fedavg", **TINY | {"rounds": 12}, **HELD)
    goal = max(line["validation_accuracy"] for line in run.rounds)
    told = fb.run("fedavg", **TINY | {"rounds": 12}, evaluate={"validation": 0.25, "target": goal}).summary
    assert told["rounds_to_target"] == run.summary["chosen_round"]
    assert not any(line["accuracy"] >= goal for line in run.rounds), "on the test set it is never reached"


def test_a_comparison_says_what_validation_would_choose(tmp_path):
    done = fb.compare("fedavg", vary={"optimizer.lr": [0.001, 0.3]}, seeds=2, **TINY, **HELD)
    table = comparison(done.records)
    assert {"chosen (%)", "validation (%)"} <= {column.title for column in table.columns}
    by = {label: numbers["chosen_validation"]["mean"] for label, numbers in done.summary.items()}
    (said,) = [line for line in caveats(done.records) if line.startswith("Chosen on validation samples")]
    assert f": {max(by, key=by.get)}, with" in said
    assert tmp_path / "curves-validation.png" in done.report(tmp_path)
    assert said in (tmp_path / "report.html").read_text()
    both = fb.compare("fedavg", "fedprox", vary={"optimizer.lr": [0.001, 0.3]}, **TINY, **HELD)
    (said,) = [line for line in caveats(both.records) if line.startswith("Chosen on validation samples")]
    assert said.count("on the test set") == 2 and "fedavg lr=" in said and "; fedprox lr=" in said, "one of each method"
    plain = fb.compare("fedavg", "fedprox", **TINY)
    assert not [line for line in caveats(plain.records) if "alidation" in line]
    assert "chosen" not in {column.key for column in comparison(plain.records).columns}


# --- kept, and gone on with


def test_resumed_it_is_the_same(tmp_path):
    asked = TINY | HELD | {"save": {"every": 1}}
    whole = fb.run("scaffold", **asked)
    fb.run("scaffold", **asked, out=tmp_path / "run", on_round=lambda line, _: fb.STOP if line["round"] == 2 else None)
    resumed = fb.run("scaffold", **asked, out=tmp_path / "run", resume=True)
    assert timeless(resumed.rounds) == timeless(whole.rounds)
    with pytest.raises(fb.UserError, match=r"evaluate\.validation"):
        fb.run("scaffold", **asked | {"evaluate": {"validation": 0.3}}, out=tmp_path / "run", resume=True)


def test_read_back_it_is_the_same(tmp_path):
    run = fb.run("fedavg", rounds=2, **HELD, out=tmp_path / "run")
    back = fb.load(tmp_path / "run")
    assert back.summary == run.summary and back.rounds == run.rounds
    assert back.label_counts == run.label_counts and sum(map(sum, run.label_counts)) < 1438
    goal = run.rounds[-1]["validation_accuracy"]
    (cost,) = analyze([tmp_path / "run"], f"cost(target={goal})")
    assert (
        cost.quantities["rounds_to_target"]
        == [line["validation_accuracy"] >= goal for line in run.rounds].index(True) + 1
    )


# --- on the command line


def test_the_command_shows_it(tmp_path):
    asked = ["--set", "rounds=3", "--set", "evaluate.validation=0.1", "--set", "evaluate.target=0.1"]
    said = CliRunner().invoke(app, ["run", *asked, "--out", str(tmp_path / "run")])
    assert said.exit_code == 0, said.output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    chosen = f"{100 * summary['chosen']:.2f} % in round {summary['chosen_round']}"
    shown = " ".join(said.output.split())
    assert f"chosen by validation {chosen}, with {100 * summary['chosen_validation']:.2f} % on validation" in shown
    assert "rounds to 10.00 % on validation 1" in shown and ", on validation " in shown


def test_the_split_that_is_shown_is_the_one_that_is_trained_on():
    told = CliRunner().invoke(app, ["data", "partition", "--set", "evaluate.validation=0.1", "--json"])
    shown = json.loads(told.output)
    run = fb.run(rounds=1, evaluate={"validation": 0.1})
    assert shown["label_counts"] == run.label_counts and shown["command"].endswith("--set evaluate.validation=0.1")


@pytest.mark.parametrize("share", [-0.1, 1.0, 30])
def test_what_is_no_share_is_refused(share):
    with pytest.raises(fb.UserError, match=r"evaluate\.validation is a share of the training samples"):
        fb.run("fedavg", **TINY, evaluate={"validation": share})
