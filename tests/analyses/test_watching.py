"""Analyses inside a run: numbers in the log, and nothing else is different."""

import pytest
from helpers import advanced, federation, held, identical, toy
from recorded import left_on_disk, record

import fedbraid as fb
from fedbraid.analyses.index import OF_ONE
from fedbraid.training.watches import WATCHES

WATCH = {"analyses": ["drift", "fairness"], "analysis": {"every": 2}}


def numbers(line):
    return {key for key in line if "." in key}


@pytest.mark.parametrize(
    ("kind", "method"),
    [("stack", "scaffold+skip(every=3)+avgm+prox"), ("stack", "rfedavg+fedacd"), ("loop", "moon+disco")],
)
def test_a_run_that_is_watched_is_the_same_run_to_the_bit(tmp_path, method, kind):
    engine = {"device": "cpu", "kind": kind}
    record(tmp_path / "plain", method, engine=engine)
    record(tmp_path / "watched", method, engine=engine, **WATCH)
    plain, watched = left_on_disk(tmp_path / "plain"), left_on_disk(tmp_path / "watched")
    assert any(numbers(line) for line in watched["lines"])
    watched["lines"] = [{key: line[key] for key in line if "." not in key} for line in watched["lines"]]
    assert watched == plain


def test_chunks_dropout_and_own_models_change_nothing_either():
    settings = {"engine": {"chunk": 2}, "rounds": 4, "sampling": {"dropout": 0.4}}
    plain = advanced(federation("scaffold", **settings))
    watched = advanced(federation("scaffold", **settings, analyses=["drift", "fairness"], analysis={"every": 1}))
    assert identical(held(plain), held(watched))


def test_numbers_are_in_the_rounds_that_are_due_and_in_the_last(tmp_path):
    lines = record(tmp_path, "fedavg", rounds=5, evaluate={"every": 4}, **WATCH).rounds
    drift = {f"drift.{key}" for key in ("variance", "step", "length", "cosine")}
    fair = {f"fairness.{key}" for key in ("variance", "worst", "class_std", "head", "middle", "tail")}
    assert [numbers(line) for line in lines] == [set(), drift, set(), drift | fair, drift | fair]


class Stop(Exception):
    pass


@pytest.mark.parametrize("stop", [1, 4])
def test_a_watched_run_resumes_to_the_same_log(tmp_path, stop):
    record(tmp_path / "whole", **WATCH)

    def at(line, config):
        if line["round"] == stop:
            raise Stop

    with pytest.raises(Stop):
        record(tmp_path / "stopped", on_round=at, **WATCH)
    record(tmp_path / "stopped", **WATCH)
    assert left_on_disk(tmp_path / "stopped") == left_on_disk(tmp_path / "whole")


def test_a_run_cannot_be_resumed_with_other_analyses(tmp_path):
    record(tmp_path, "fedavg", **WATCH)
    with pytest.raises(fb.UserError, match="was begun with analyses = "):
        record(tmp_path, "fedavg", analyses=["drift"], analysis={"every": 2})


def test_runs_that_train_together_are_watched_each_by_itself():
    data, partition = toy()
    settings = {"rounds": 3, "engine": {"device": "cpu", "dtype": "float64", "kind": "stack"}, "local": {"epochs": 3}}
    settings |= {"data": data, "partition": partition, "analyses": ["drift"], "analysis": {"every": 1}}
    methods = "prox(mu=0.1)", "prox(mu=1.0)"
    joint = fb.compare(*methods, seeds=2, **settings)
    alone = fb.compare(*methods, seeds=2, together=False, **settings)
    found = []
    for one, other in zip(joint.runs, alone.runs, strict=True):
        for line, same in zip(one.rounds, other.rounds, strict=True):
            told = {key: line[key] for key in numbers(line)}
            assert told == pytest.approx({key: same[key] for key in numbers(same)}, rel=1e-9)
            found.append(tuple(told.values()))
    assert len(set(found)) == len(found)  # every run has its own


def test_a_regression_drifts_and_has_no_fairness_to_tell():
    data, partition = toy(task="regression")
    run = fb.run(
        "fedavg", rounds=1, data=data, partition=partition, engine={"device": "cpu"}, analyses=["drift", "fairness"]
    )
    assert {key.split(".")[0] for key in numbers(run.rounds[0])} == {"drift"}


def test_mistakes_are_one_sentence():
    with pytest.raises(
        fb.UserError, match="no analysis that runs inside a run is called 'drfit'; did you mean 'drift'"
    ):
        fb.run("fedavg", analyses=["drfit"])
    with pytest.raises(fb.UserError, match=r'analyses must be a list of names such as \["drift"\], not .drift.'):
        fb.run("fedavg", analyses="drift")
    with pytest.raises(fb.UserError, match=r"analysis.every must be 1 or more, not 0"):
        fb.run("fedavg", analysis={"every": 0})


def test_what_runs_inside_a_run_can_also_be_asked_of_a_recorded_one():
    assert {watch.name for watch in WATCHES} <= {entry.name for entry in OF_ONE}
