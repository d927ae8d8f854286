"""A recorded run is looked at, never changed; the round that would come next is the round that comes next."""

import hashlib
import math
from dataclasses import replace

import pytest
import torch
from helpers import held, identical, toy
from networks import Shortcut
from problems import EXACT

import fedbraid as fb
from fedbraid.analyses import analyze, headline
from fedbraid.analyses.index import OF_ONE, OF_SEVERAL
from fedbraid.analyses.recorded import Recorded
from fedbraid.training.run_directory import RunDirectory
from fedbraid.training.user_objects import UserObjects
from fedbraid.training.watches import measure_drift

EVERYTHING = [entry.name for entry in (*OF_ONE, *OF_SEVERAL)]


class Stopped(Exception):
    """Somebody pulled the plug."""


def run(place, method, stop=None, **settings):
    """A small run, stopped after a round if one is given; with a checkpoint after every round."""

    def on_round(line, config):
        if line["round"] == stop:
            raise Stopped

    data, partition = toy()
    usual = {"rounds": 5, "model": {"name": "mlp", "hidden": [5]}, "local": {"batch": 4}, "engine": EXACT}
    usual |= {"sampling": {"clients": 4}, "save": {"every": 1}, "analyses": ["drift"], "analysis": {"every": 1}}
    try:
        return fb.run(
            method, out=place, data=data, partition=partition, resume=True, on_round=on_round, **usual | settings
        )
    except Stopped:
        return None


GIVEN = UserObjects(*toy())


@pytest.mark.parametrize(
    ("method", "stop"),
    [
        ("fedavg", 2),
        ("scaffold+prox", 4),
        ("skip(every=3)", 1),  # models wander in the round after
        ("skip(every=3)", 2),  # and are averaged in this one
        ("rfedavg", 1),
        ("rfedavg_plus+moon", 3),
    ],
)
def test_the_round_that_would_come_next_is_the_one_that_comes(tmp_path, method, stop):
    run(tmp_path, method, stop)
    would = measure_drift(Recorded(tmp_path, GIVEN).next_round)
    done = run(tmp_path, method)
    assert would == {key: done.rounds[stop][f"drift.{key}"] for key in would}


def test_the_round_after_the_last_one_has_the_last_ones_learning_rate(tmp_path):
    """A learning rate that comes down to nothing never is nothing, not even there."""
    done = run(tmp_path, "scaffold", schedule={"shape": "cosine"})
    after = Recorded(tmp_path, GIVEN).next_round
    assert after.job.lr == done.rounds[-1]["lr"] > 0
    assert all(math.isfinite(value) for value in measure_drift(after).values())


def test_a_stopped_run_is_the_same_run_after_any_analysis(tmp_path):
    """Nothing in the directory changes, and resumed it ends as one that nobody looked at."""
    engine = EXACT | {"kind": "loop"}
    clients = {"save": {"every": 1, "clients_on_disk": True}}
    method = "scaffold+rfedavg"
    whole = run(tmp_path / "whole", method, engine=engine, **clients)
    place = tmp_path / "looked at"
    run(place, method, stop=3, engine=engine, **clients)
    with open(place / "rounds.jsonl", "ab") as log:
        log.write(b'{"round": 4, "cut off')  # a crash in the middle of a line
    before = contents(place)
    made = analyze(place, EVERYTHING, objects=GIVEN)
    assert [analysis.name for analysis in made] == EVERYTHING
    assert contents(place) == before
    again = run(place, method, engine=engine, **clients)
    assert [drop_time(line) for line in again.rounds] == [drop_time(line) for line in whole.rounds]
    for one, other in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


def contents(place):
    files = (file for file in place.rglob("*") if file.is_file() and file.name != ".lock")
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def drop_time(line):
    return {key: value for key, value in line.items() if key != "seconds"}


def test_looking_twice_sees_the_same(tmp_path):
    run(tmp_path, "scaffold")
    names = ["drift", "forgetting", "dissimilarity", "adaptability"]
    assert headline(tmp_path, names, objects=GIVEN) == headline(tmp_path, names, objects=GIVEN)


def test_what_clients_keep_stays_as_the_run_left_it(tmp_path):
    run(tmp_path, "scaffold", stop=2)
    recorded = Recorded(tmp_path, GIVEN)
    before = held(recorded.simulation)
    assert len(recorded.next_round.cohort) == 4
    assert identical(held(recorded.simulation), before)


def test_a_run_without_a_checkpoint_is_at_its_beginning(tmp_path):
    run(tmp_path, "fedavg", stop=1, save={"every": 10})
    recorded = Recorded(tmp_path, GIVEN)
    assert recorded.simulation.server.round == 0 and len(recorded.rounds) == 1


def test_a_run_that_somebody_writes_to_is_not_looked_at(tmp_path):
    run(tmp_path, "fedavg")
    with RunDirectory(tmp_path).locked(), pytest.raises(fb.UserError, match="in use by another process"):
        analyze(tmp_path, ["cost"])


def test_other_data_are_refused(tmp_path):
    run(tmp_path, "fedavg")
    other = UserObjects(*toy(seed=1))
    with pytest.raises(fb.UserError, match="other data or another model"):
        analyze(tmp_path, ["forgetting"], objects=other)


def test_of_a_network_of_ones_own_the_architecture_is_enough(tmp_path):
    module, names = Shortcut(), ["drift", "adaptability", "forgetting"]
    run(tmp_path, "rfedavg", model=module)
    same, other = (headline(tmp_path, names, objects=replace(GIVEN, model=m)) for m in (module, Shortcut))
    assert same == other
    first = Recorded(tmp_path, replace(GIVEN, model=Shortcut)).first_round
    assert torch.equal(first.before.w, torch.cat([p.detach().flatten() for p in module.double().parameters()]))


def test_mistakes_are_one_sentence(tmp_path):
    with pytest.raises(fb.UserError, match="holds no run"):
        analyze(tmp_path / "nothing", ["drift"])
    assert not (tmp_path / "nothing").exists()
    run(tmp_path, "fedavg")
    with pytest.raises(fb.UserError, match="no analysis is called 'dritf'; did you mean 'drift'"):
        analyze(tmp_path, ["dritf"])
    with pytest.raises(fb.UserError, match="analysis 'drift' takes no options; leave 'top' out"):
        analyze(tmp_path, ["drift(top=3)"])
    with pytest.raises(fb.UserError, match=r"'drift\+cost' is not an analysis"):
        analyze(tmp_path, ["drift+cost"])


def test_a_table_without_pandas_is_one_sentence_and_everything_else_works(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    run(tmp_path, "fedavg")
    (analysis,) = analyze(tmp_path, ["cost"])
    with pytest.raises(fb.UserError, match=r"pip install 'fedbraid\[analyses\]'"):
        _ = analysis.table
    written = analysis.write(tmp_path / "analyses")
    assert written[0].read_text().startswith("run,rounds,aggregations,bytes,")


def test_a_run_with_data_of_ones_own_says_that_it_needs_them_again(tmp_path):
    run(tmp_path, "fedavg", rounds=1)
    with pytest.raises(
        fb.UserError,
        match=r"was given its data in Python: .*fedbraid.analyses.analyze\(…, objects=UserObjects\(data=…\)\)",
    ):
        analyze(tmp_path, ["features"])
