"""Runs that do not come to their end: what of a comparison is kept, and how a run is stopped on purpose."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from helpers import toy
from test_api import TINY

import fedbraid as fb
from fedbraid.cli.app import main

DATA, PARTITION = TINY["data"], TINY["partition"]
BROKEN: set[int] = {1}
"""Seeds with which `Brittle` fails."""


@dataclass(frozen=True)
class Brittle(fb.Strand):
    """Shares a stack with FedAvg, and fails in the second round."""

    def update(self, delta, r):
        if r.number == 1 and r.setup.seed in BROKEN:
            raise ValueError("too thin")
        return 0.9 * delta, r.state


@dataclass(frozen=True)
class Wrong(fb.Strand):
    def loss(self, out, batch, c):
        return out.logits[:, 99].sum()


pytestmark = pytest.mark.usefixtures("not_rendered")


def test_what_fails_is_named_and_the_others_are_compared(tmp_path, caplog):
    methods = "fedavg", Brittle(), Wrong(), "prox"
    result = fb.compare(*methods, seeds=2, out=tmp_path, **TINY)
    assert [(f.label, f.seed) for f in result.failed] == [("brittle", 1), ("wrong", 0), ("wrong", 1)]
    assert list(result.summary) == ["fedavg", "brittle", "prox"] and result.summary["brittle"]["seeds"] == 1
    assert "update of brittle failed at" in result.failed[0].reason and type(result.failed[0].error) is ValueError
    for seed in (0, 1):  # whom a failing one shared its stack with
        torch.testing.assert_close(result.runs[seed].model.head.weight, fb.run(seed=seed, **TINY).model.head.weight)
    assert "brittle seed 1 failed: update of brittle failed at" in caplog.text
    for file in ("table.md", "report.html"):
        assert "brittle failed with seed 1: " in (tmp_path / file).read_text()
    assert len(json.loads((tmp_path / "table.json").read_text())["rows"]) == 3


@dataclass(frozen=True)
class Stillborn(fb.Strand):
    def init_server(self, setup):
        raise ValueError("no state")


def test_what_cannot_begin_once_others_have_is_left_out_too():
    result = fb.compare("scaffold", "fedavg", Stillborn(), **TINY)
    assert list(result.summary) == ["scaffold", "fedavg"]
    assert "init_server of stillborn failed at" in result.failed[0].reason


def test_what_failed_goes_on_once_it_is_mended(tmp_path, monkeypatch):
    fb.compare("fedavg", Brittle(), seeds=2, out=tmp_path, **TINY)
    monkeypatch.setattr(sys.modules[__name__], "BROKEN", set())
    seen = []
    again = fb.compare(
        "fedavg", Brittle(), seeds=2, out=tmp_path, resume=True, **TINY, on_round=lambda line, c: seen.append(c.seed)
    )
    assert not again.failed and len(again.runs) == 4 and set(seen) == {1}


def test_a_comparison_of_which_nothing_is_left_is_an_error():
    with pytest.raises(fb.UserError, match=r"loss of wrong failed at .*: IndexError") as caught:
        fb.compare(Wrong(), seeds=2, **TINY)
    assert type(caught.value.__cause__) is IndexError


def test_what_is_known_beforehand_is_refused_before_anything_is_trained(tmp_path):
    regression, shares = toy(task="regression")
    trained = []
    settings = TINY | {"data": regression, "partition": shares, "on_round": lambda line, c: trained.append(line)}
    with pytest.raises(fb.UserError, match="lc needs class labels"):
        fb.compare("fedavg", "fedlc", **settings)
    fb.run("prox", out=tmp_path / "prox" / "seed-0", **TINY)
    with pytest.raises(fb.UserError, match="already holds a run"):
        fb.compare("fedavg", "prox", out=tmp_path, **settings)
    assert not trained


def test_the_command_shows_the_others_and_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text(
        "from dataclasses import dataclass\nimport fedbraid as fb\n\n"
        "@dataclass(frozen=True)\nclass Bad(fb.Strand):\n"
        "    def loss(self, out, batch, c):\n        return out.logits[:, 99].sum()\n"
    )
    words = ["compare", "bad", "fedavg", "--strand", "bad.py:Bad", "--set", "rounds=1", "--out", "c", "--json"]
    monkeypatch.setattr(sys, "argv", ["fedbraid", *words])
    with pytest.raises(SystemExit) as left:
        main()
    shown = capsys.readouterr()
    table = json.loads(shown.out)
    assert left.value.code == 1 and [row["method"] for row in table["rows"]] == ["fedavg"]
    assert table["failed"][0]["method"] == "bad" and "loss of bad failed at bad.py:7" in table["notes"][0]
    assert "error: bad failed with seed 0: loss of bad failed" in shown.err and "--out c --resume" in shown.err


# --- stopped on purpose


def stopping(*rounds):
    """Stops each seed after its round."""
    return lambda line, config: fb.STOP if line["round"] == rounds[config.seed] else True


def test_a_run_is_stopped_and_kept_and_goes_on_where_it_was(tmp_path):
    stopped = fb.run("scaffold", out=tmp_path, on_round=stopping(2), **TINY)
    assert [line["round"] for line in stopped.rounds] == [1, 2] and stopped.summary["rounds"] == 2
    again = fb.load(tmp_path, data=DATA, partition=PARTITION)
    assert again.rounds == stopped.rounds and torch.equal(again.model.head.weight, stopped.model.head.weight)
    seen = []
    resumed = fb.run("scaffold", out=tmp_path, resume=True, on_round=lambda line, _: seen.append(line["round"]), **TINY)
    whole = fb.run("scaffold", **TINY)
    assert seen == [3] and torch.equal(resumed.model.head.weight, whole.model.head.weight)
    assert json.loads((tmp_path / "summary.json").read_text())["rounds"] == 3


def test_each_run_of_a_comparison_is_stopped_by_itself():
    result = fb.compare("fedavg", "scaffold", seeds=2, on_round=stopping(1, 3), **TINY)
    assert [len(run.rounds) for run in result.runs] == [1, 3, 1, 3]
    torch.testing.assert_close(result.runs[1].model.head.weight, fb.run(seed=1, **TINY).model.head.weight)


def test_a_round_that_was_begun_before_the_answer_came_counts(tmp_path, monkeypatch):
    monkeypatch.setattr("fedbraid.training.shared_stack.SharedStack.runs_ahead", True)  # as on a GPU
    stopped = fb.run(out=tmp_path, on_round=stopping(1), **TINY)
    assert [line["round"] for line in stopped.rounds] == [1, 2]
    assert len(fb.run(out=tmp_path, resume=True, **TINY).rounds) == 3


@pytest.mark.parametrize("error", [StopIteration("enough"), ValueError("mine")])
def test_what_on_round_raises_comes_out_as_it_is(error):
    def raising(line, config):
        raise error from KeyError("why")

    for call in (fb.run, fb.compare):
        with pytest.raises(type(error)) as caught:
            call("fedavg", on_round=raising, **TINY)
        assert caught.value is error and type(error.__cause__) is KeyError
