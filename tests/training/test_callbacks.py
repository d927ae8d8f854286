"""Callbacks follow runs, see the model of the round, and stop runs."""

from dataclasses import dataclass, field
from math import nan

import pytest
import torch
from helpers import toy

import fedbraid as fb
from fedbraid.training.shared_stack import SharedStack

DATA, PARTITION = toy()
TINY = {"data": DATA, "partition": PARTITION, "model": "logistic", "rounds": 4, "engine": {"device": "cpu"}}


@dataclass
class Follow(fb.Callback):
    calls: list = field(default_factory=list)
    weights: list = field(default_factory=list)

    def note(self, hook, state):
        self.calls.append((hook, state.config.method, state.line and state.line["round"]))
        self.weights.append([p.detach().clone() for p in state.model.parameters()])

    def on_start(self, state):
        self.note("start", state)

    def on_round(self, state):
        self.note("round", state)

    def on_end(self, state):
        self.note("end", state)


class StopsAt:
    """A callback that derives from nothing and has one hook."""

    def __init__(self, at):
        self.at = at

    def on_round(self, state):
        if state.line["round"] == self.at:
            state.stop()


def weights(run):
    return list(run.model.parameters())


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_callback_is_called_at_the_start_after_each_round_and_at_the_end():
    follow = Follow()
    run = fb.run(callbacks=[follow], **TINY)
    rounds = [("round", "fedavg", n) for n in range(1, 5)]
    assert follow.calls == [("start", "fedavg", None), *rounds, ("end", "fedavg", 4)]
    assert equal(weights(run), weights(fb.run(**TINY)))  # who looks on changes nothing
    assert equal(follow.weights[-1], weights(run))


@pytest.mark.parametrize("ahead", [False, True])
def test_the_model_is_that_of_the_line_also_where_rounds_are_launched_ahead(ahead, monkeypatch):
    monkeypatch.setattr(SharedStack, "runs_ahead", ahead)  # as on a GPU
    follow = Follow()
    fb.run(callbacks=[follow], **TINY)
    assert equal(follow.weights[2], weights(fb.run(**TINY | {"rounds": 2})))


def test_changing_the_model_of_the_state_changes_no_run():
    class Spoil:
        def on_round(self, state):
            for parameter in state.model.parameters():
                parameter.data.fill_(nan)

    assert equal(weights(fb.run(callbacks=[Spoil()], **TINY)), weights(fb.run(**TINY)))


def test_a_stopped_run_is_recorded_and_can_be_resumed(tmp_path):
    follow = Follow()
    run = fb.run(callbacks=[StopsAt(2), follow], out=tmp_path, **TINY)
    assert len(run.rounds) == 2 and follow.calls[-1] == ("end", "fedavg", 2)
    assert fb.load(tmp_path, data=DATA, partition=PARTITION).summary["rounds"] == 2
    again = Follow()
    resumed = fb.run(callbacks=[again], out=tmp_path, resume=True, **TINY)
    assert [call[2] for call in again.calls] == [2, 3, 4, 4]
    assert equal(weights(resumed), weights(fb.run(**TINY)))
    finished = Follow()
    fb.run(callbacks=[finished], out=tmp_path, resume=True, **TINY)
    assert finished.calls == []


def test_runs_of_a_comparison_are_followed_and_stopped_by_themselves():
    class StopsFedAvg:
        def on_round(self, state):
            if state.config.method == "fedavg":
                state.stop()

    follow = Follow()
    done = fb.compare("fedavg", "prox(mu=0.3)", callbacks=[StopsFedAvg(), follow], **TINY)
    assert [len(run.rounds) for run in done.runs] == [1, 4]
    assert [call[1] for call in follow.calls if call[0] == "end"] == ["fedavg", "prox(mu=0.3)"]


def test_the_function_of_a_line_works_beside_callbacks():
    seen = []
    run = fb.run(callbacks=[StopsAt(3)], on_round=lambda line, config: seen.append(line["round"]), **TINY)
    assert seen == [1, 2, 3] and len(run.rounds) == 3


@pytest.mark.parametrize("hook", ["on_start", "on_round", "on_end"])
def test_what_a_hook_raises_comes_out_unchanged(hook):
    error = KeyError("mine")

    def fail(self, state):
        raise error

    with pytest.raises(KeyError) as raised:
        fb.compare("fedavg", "fedprox", callbacks=[type("Fails", (), {hook: fail})()], **TINY)
    assert raised.value is error


def test_what_is_no_callback_is_refused():
    for wrong, said in (
        (fb.EarlyStopping(), "callbacks is a list"),
        ([fb.EarlyStopping], "EarlyStopping is a class"),
        ([print], "is given as on_round="),
        ([3], "3 is no callback: it has none of on_start, on_round, on_end"),
    ):
        with pytest.raises(fb.UserError, match=said):
            fb.run(callbacks=wrong, **TINY)


# --- early stopping


@pytest.mark.parametrize(
    "scores, higher, delta, since",
    [
        ([0.1, 0.2, 0.3], True, 0.0, 0),
        ([0.1, 0.3, 0.2, 0.3], True, 0.0, 2),
        ([0.3, 0.2, 0.25, nan], False, 0.0, 2),
        ([0.1, 0.15, 0.19, 0.25], True, 0.1, 0),
        ([0.1, 0.15, 0.19], True, 0.1, 2),
        ([nan, nan], True, 0.0, 2),
        ([], True, 0.0, 0),
    ],
)
def test_evaluations_without_improvement(scores, higher, delta, since):
    stopping = fb.EarlyStopping(min_delta=delta)
    assert stopping.evaluations_without_improvement(scores, higher) == since


def state_of(lines):
    return fb.RunState(fb.Config(), lines, None, torch.nn.Identity)


def stops(lines, **how):
    state = state_of(lines)
    fb.EarlyStopping(**how).on_round(state)
    return state.stopping


def test_early_stopping_counts_evaluations_on_validation_samples_if_there_are_any():
    def line(test, validation=None):
        return {"accuracy": test, "loss": 1.0, "validation_accuracy": validation, "validation_loss": validation}

    better = [line(0.5, 0.1), line(0.4, 0.2), line(0.3, 0.3)]
    assert not stops(better, patience=2) and stops(better, patience=2, metric="accuracy")
    assert stops(better, patience=2, metric="validation_loss")  # which grows
    assert stops([line(0.5), line(None), line(0.4)], patience=1)
    assert not stops([line(0.5), line(None), line(None)], patience=1)  # rounds without evaluation do not count
    assert not stops([line(None)], patience=1)
    assert stops([line(0.5, 0.1), line(0.5, 0.9) | {"finite": False}], patience=1)  # a diverged model is not better


def test_early_stopping_ends_a_run_where_the_score_stops_to_improve():
    whole = fb.run(**TINY | {"rounds": 12})
    stopped = fb.run(callbacks=[fb.EarlyStopping(patience=2)], **TINY | {"rounds": 12})
    count = len(stopped.rounds)
    assert 3 <= count < 12
    scores = [line["accuracy"] for line in whole.rounds[:count]]
    assert max(scores[-2:]) <= max(scores[:-2]) and [line["accuracy"] for line in stopped.rounds] == scores


def test_early_stopping_names_a_metric_that_is_not_logged():
    with pytest.raises(fb.UserError, match=r"watches 'auroc', which the log does not have; it has .*accuracy"):
        fb.run(callbacks=[fb.EarlyStopping(metric="auroc")], **TINY)
    with pytest.raises(fb.UserError, match="patience"):
        fb.EarlyStopping(patience=0)
    with pytest.raises(fb.UserError, match="min_delta"):
        fb.EarlyStopping(min_delta=-1.0)
