"""Drift on a problem where everything is known: client k's loss is ½ ‖w − a_k‖² / 2, so one step moves it to
w − η/2 (w − a_k)."""

import json
from itertools import combinations

import numpy as np
import pytest
from helpers import federation
from problems import Point, record, targets

from fedbraid.analyses import headline
from fedbraid.engines import local_engine as local

A = np.array([[2.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])
W0 = np.array([1.0, 3.0])


def by_hand(w, lr=0.5):
    moved = -lr / 2 * (w - A)  # the updates
    after = w + moved.mean(0)
    cosines = [u @ v / np.linalg.norm(u) / np.linalg.norm(v) for u, v in combinations(moved, 2)]
    return after, {
        "drift.variance": np.square(w + moved - after).sum(1).mean(),
        "drift.step": np.linalg.norm(after - w),
        "drift.length": np.linalg.norm(moved, axis=1).mean(),
        "drift.cosine": np.mean(cosines),
    }


def logged(place):
    lines = [json.loads(line) for line in (place / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key.startswith("drift.")} for line in lines]


@pytest.mark.parametrize("kind", ["stack", "loop"])
def test_the_log_has_what_the_closed_form_says(tmp_path, kind):
    settings = {"analyses": ["drift"], "analysis": {"every": 1}, "rounds": 2}
    record(tmp_path, targets(*A), Point(W0), engine={"device": "cpu", "dtype": "float64", "kind": kind}, **settings)
    w, first = by_hand(W0)
    _, second = by_hand(w)
    assert logged(tmp_path) == [pytest.approx(first, abs=1e-12), pytest.approx(second, abs=1e-12)]


def test_a_recorded_run_that_did_not_watch_tells_of_the_round_that_would_come_next(tmp_path):
    given = record(tmp_path, targets(*A), Point(W0))
    w, _ = by_hand(W0)
    assert headline(tmp_path, ["drift"], objects=given) == pytest.approx(by_hand(w)[1], abs=1e-12)


def test_uploads_in_a_file_tell_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "FEW", 0)
    engine = {"device": "cpu", "dtype": "float64", "kind": "stack", "chunk": 2}
    record(tmp_path, targets(*A), Point(W0), engine=engine, analyses=["drift"])
    assert logged(tmp_path) == [pytest.approx(by_hand(W0)[1], abs=1e-12)]


def test_many_parameters_are_looked_at_some_clients_at_a_time(tmp_path, monkeypatch):
    from fedbraid.training import watches as watch

    monkeypatch.setattr(watch, "NUMBERS", 4)  # two clients of two parameters
    record(tmp_path, targets(*A), Point(W0), analyses=["drift"])
    assert logged(tmp_path) == [pytest.approx(by_hand(W0)[1], abs=1e-12)]


def test_clients_that_are_lost_do_not_count(tmp_path):
    """Two that come back lie η/2 ‖a_j − a_k‖ apart, one that comes back alone is where the server goes."""
    watch = {"analyses": ["drift"], "analysis": {"every": 1}}
    record(tmp_path, targets(*A), Point(W0), rounds=20, sampling={"dropout": 0.5}, **watch)
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    by_lost = [[line for line in lines if line["lost"] == lost] for lost in range(4)]
    assert all(by_lost[1:])
    pairs = {round(float(np.square(0.25 * (a - b)).sum() / 4), 10) for a, b in combinations(A, 2)}
    assert {round(line["drift.variance"], 10) for line in by_lost[1]} <= pairs
    assert all(line["drift.variance"] == 0 and line["drift.cosine"] is None for line in by_lost[2])
    assert not any("drift.variance" in line for line in by_lost[3])


def test_a_model_that_wanders_is_measured_from_where_it_began(tmp_path):
    """With FedSkip a client starts from another's model: after two steps from w, via clients j and k."""
    record(tmp_path, targets(*A), Point(W0), "skip(every=3)", analyses=["drift"], analysis={"every": 1}, rounds=3)
    first, second, _ = logged(tmp_path)
    assert first["drift.step"] == second["drift.step"] == 0
    assert first["drift.length"] == pytest.approx(by_hand(W0)[1]["drift.length"], abs=1e-12)
    ways = {
        np.mean([np.linalg.norm(-0.25 * (W0 - 0.25 * (W0 - A[j]) - A[k])) for k, j in enumerate(order)]).round(12)
        for order in np.array(np.meshgrid(*[range(3)] * 3)).reshape(3, -1).T
        if len(set(order.tolist())) == 3
    }
    assert round(second["drift.length"], 12) in ways


def test_wandering_models_in_a_file_are_measured_from_where_each_began(monkeypatch):
    """Clients of other sizes train in another order than they stand in the cohort."""
    settings = {"analyses": ["drift"], "analysis": {"every": 1}, "rounds": 2}
    together = federation("skip(every=3)", **settings)
    monkeypatch.setattr(local, "FEW", 0)
    one_by_one = federation("skip(every=3)", engine={"chunk": 1}, **settings)
    for _ in range(2):
        line, other = together.advance(), one_by_one.advance()
        same = {key: line[key] for key in line if key.startswith("drift.")}
        assert {key: other[key] for key in same} == pytest.approx(same, rel=1e-9)


def test_a_client_that_does_not_move_has_no_direction(tmp_path):
    record(tmp_path, targets(W0, A[0], A[1]), Point(W0), analyses=["drift"])
    u, v = W0 - A[0], W0 - A[1]
    cosine = u @ v / np.linalg.norm(u) / np.linalg.norm(v)
    assert logged(tmp_path)[0]["drift.cosine"] == pytest.approx(cosine, abs=1e-12)
