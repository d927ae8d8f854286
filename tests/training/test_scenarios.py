"""Clients that are lost in the middle of a round, that come late, and classes in groups."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import SIZES, advanced, apart, federation, held, identical, toy
from hypothesis import given
from hypothesis import strategies as st

import fedbraid as fb
from fedbraid.core import sampling
from fedbraid.data.dataset import Partition
from fedbraid.errors import UserError
from fedbraid.training.evaluation import by_group
from fedbraid.training.evaluation import per_client as client_scores
from fedbraid.training.simulation import Simulation

HALF = {"clients": 5, "dropout": 0.5}


def who_arrives(simulation, round):
    return sampling.arriving(5, 0.5, seed=simulation.config.seed, round=round)


@pytest.mark.parametrize("method", ["fedavg", "scaffold+disco", "fednova", "fedntd", "fedacd", "feddyn+asd", "qfair"])
def test_a_lost_client_might_as_well_not_have_been_asked(method, monkeypatch):
    """Without an exchange before training, the round is that of the clients whose updates arrive."""
    lossy = federation(method, sampling=HALF, rounds=4)
    lines = [lossy.advance() for _ in range(4)]
    kept = federation(method, sampling={"clients": 5}, rounds=4)
    everybody = Simulation.cohort
    monkeypatch.setattr(Simulation, "cohort", lambda self: everybody(self).only(who_arrives(self, self.server.round)))
    assert apart(held(lossy), held(advanced(kept))) <= 1e-12
    lost = [5 - len(who_arrives(lossy, t)) for t in range(4)]
    assert [line["lost"] for line in lines] == lost and 0 < sum(lost) < 20
    assert all(line["clients"] == 5 for line in lines)
    for t, line in enumerate(lines):
        asked = everybody(lossy, t)
        assert line["client_ids"] == asked.ids.tolist()
        assert sorted({*line["client_ids"]} - {*line["lost_ids"]}) == asked.ids[who_arrives(lossy, t)].tolist()
        assert len(line["lost_ids"]) == line["lost"]


def test_the_log_does_not_list_the_clients_of_a_large_cohort(monkeypatch):
    monkeypatch.setattr("fedbraid.training.federation.MOST_LISTED", 5)
    lines = [federation(sampling={"clients": n, "dropout": 0.5}).advance() for n in (5, 6)]
    assert len(lines[0]["client_ids"]) == 5 and lines[1]["client_ids"] is lines[1]["lost_ids"] is None
    assert [line["clients"] for line in lines] == [5, 6]


@pytest.mark.parametrize("method", ["rfedavg_plus", "disco(target=cohort)+scaffold", "fednh", "creff(head_epochs=2)"])
def test_stack_is_loop_when_clients_are_lost(method):
    ends = [held(advanced(federation(method, sampling=HALF, engine={"kind": k}))) for k in ("stack", "loop")]
    assert apart(*ends) <= 1e-12


def test_bytes_go_down_to_everybody_and_come_up_from_those_who_arrive():
    lossy, whole = (federation("scaffold", sampling={"clients": 5, "dropout": d}) for d in (0.5, 0.0))
    for t in range(3):
        one, other = lossy.advance(), whole.advance()
        assert one["bytes_down"] == other["bytes_down"]
        assert one["bytes_up"] * 5 == other["bytes_up"] * len(who_arrives(lossy, t))


def test_what_a_lost_client_keeps_stays_as_it_was():
    simulation = federation("scaffold", sampling={"dropout": 0.5}, rounds=1)
    arrived = sampling.arriving(len(SIZES), 0.5, seed=0, round=0)
    simulation.advance()
    moved = simulation.store.read(range(len(SIZES)))["scaffold"]["c"].abs().sum(1) > 0
    assert moved.nonzero().flatten().tolist() == arrived.tolist() != list(range(len(SIZES)))


@pytest.mark.parametrize("method", ["fedavgm+scaffold", "rfedavg_plus"])
def test_a_round_in_which_everybody_is_lost_changes_nothing(method):
    simulation = federation(method, sampling={"clients": 1, "dropout": 0.9}, rounds=8)
    seen_empty = 0
    for t in range(8):
        before, line = held(simulation), simulation.advance()
        if not len(sampling.arriving(1, 0.9, seed=0, round=t)):
            seen_empty += 1
            assert identical(before, held(simulation))
            assert line["train_loss"] is None and line["lost"] == 1 and line["finite"]
            assert line["lost_ids"] == line["client_ids"] and len(line["client_ids"]) == 1
            assert line["accuracy"] is not None
    assert 0 < seen_empty <= 8
    assert simulation.finished


def test_a_lossy_run_resumes_to_the_same_bits(tmp_path):
    settings = {
        "rounds": 6,
        "sampling": {"clients": 5, "dropout": 0.4, "late": 0.3, "late_by": 5},
        "save": {"every": 2},
    }
    whole = fb.run("scaffold+disco", out=tmp_path / "whole", **settings)

    class Stop(Exception):
        pass

    def stop(record, config):
        if record["round"] == 3:
            raise Stop

    with pytest.raises(Stop):
        fb.run("scaffold+disco", out=tmp_path / "cut", on_round=stop, **settings)
    again = fb.run("scaffold+disco", out=tmp_path / "cut", resume=True, **settings)
    assert all((a == b).all() for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True))
    assert [r["lost"] for r in whole.rounds] == [r["lost"] for r in again.rounds]


@given(st.integers(1, 60), st.floats(0, 0.99), st.integers(1, 20), st.integers(0, 20), st.integers(0, 2**40))
def test_late_clients_come_when_they_should(population, late, first, more, seed):
    rounds = sampling.arrivals(population, late, first, first + more, seed=seed)
    came_late = rounds[rounds > 0]
    assert len(came_late) == int(late * population) < population
    assert ((came_late >= first) & (came_late <= first + more)).all()


def test_nobody_takes_part_before_arriving():
    sampled = {"late": 0.7, "late_from": 3, "late_by": 5}
    simulation = federation("fedavg", sampling=sampled, rounds=6)
    arrivals = sampling.arrivals(len(SIZES), 0.7, 2, 4, seed=0)
    seen = []
    for t in range(6):
        ids = simulation.cohort().ids
        assert ids.tolist() == np.flatnonzero(arrivals <= t).tolist()
        seen.append(len(ids))
        simulation.advance()
    assert seen[0] == 2 and seen[-1] == len(SIZES) and seen == sorted(seen)


def test_a_fixed_number_is_taken_from_those_who_are_there():
    simulation = federation("fedavg", sampling={"clients": 2, "late": 0.5, "late_from": 2, "late_by": 2}, rounds=12)
    early = set(np.flatnonzero(sampling.arrivals(len(SIZES), 0.5, 1, 1, seed=0) == 0).tolist())
    assert set(simulation.cohort().ids.tolist()) < early
    seen = set()
    for _ in range(12):
        seen |= set(simulation.cohort().ids.tolist())
        simulation.advance()
    assert seen == set(range(len(SIZES)))


@pytest.mark.parametrize(
    ("sampled", "sentence"),
    [
        ({"dropout": 0.1}, "skip needs every client of a round to come back; set sampling.dropout=0"),
        ({"late": 0.5}, "only 3 of 6 are there from the beginning; set sampling.clients to at most 3"),
    ],
)
def test_wandering_models_need_everybody(sampled, sentence):
    with pytest.raises(UserError, match=sentence):
        federation("skip", sampling=sampled)
    federation("skip", sampling={"late": 0.5, "clients": 3}).advance()


@pytest.mark.parametrize(
    ("sampled", "sentence"),
    [
        ({"dropout": 1.0}, "sampling.dropout is a share from 0 to below 1, not 1.0"),
        ({"late": -0.1}, "sampling.late is a share"),
        ({"late_from": 1}, "must be rounds from 2 on, in order"),
        ({"late_from": 9, "late_by": 8}, "must be rounds from 2 on, in order"),
    ],
)
def test_wrong_scenarios_are_refused(sampled, sentence):
    with pytest.raises(UserError, match=sentence):
        federation("fedavg", sampling=sampled)


def test_groups_of_classes_are_scored_by_the_mean_of_their_classes():
    line = federation("fedavg", data=toy(sizes=(200, 90), classes=5), evaluate={"groups": True}).advance()
    counts = np.bincount(toy(sizes=(200, 90), classes=5)[0].train.y, minlength=5)
    order = sorted(range(5), key=lambda c: (-counts[c], c))
    want = {"head": order[:2], "middle": order[2:4], "tail": order[4:]}
    for name, members in want.items():
        assert line["group_accuracy"][name] == pytest.approx(np.mean([line["per_class"][c] for c in members]))
    assert by_group([None, 0.5, 1.0], {"head": [0, 1], "middle": [2], "tail": [0]}) == {
        "head": 0.5,
        "middle": 1.0,
        "tail": None,
    }


def test_clients_without_test_samples_are_scored_by_their_labels():
    dataset, partition = toy()
    tests = tuple(np.arange(5) if k == 2 else np.empty(0, dtype=np.int64) for k in range(len(SIZES)))
    per_client = {"evaluate": {"per_client": True}}
    mixed = federation("fedavg", data=(dataset, replace(partition, client_tests=tests)), **per_client).advance()
    plain = federation("fedavg", data=(dataset, partition), **per_client).advance()
    ours, theirs = mixed["client_accuracy"]["each"], plain["client_accuracy"]["each"]
    assert [k for k in range(len(SIZES)) if ours[k] != theirs[k]] in ([2], [])
    assert ours[2] in {0.0, 0.2, 0.4, 0.6, 0.8, 1.0} and None not in ours
    assert mixed["client_accuracy"]["mean"] == pytest.approx(np.mean(ours))
    assert client_scores([0.5, None], np.zeros(0), Partition(partition.clients[:1]), np.array([[0, 3]])) == {
        "mean": None,
        "std": None,
        "min": None,
        "worst10": None,
        "each": [None],
    }


def test_clients_scores_are_the_means_over_their_own_test_samples():
    rng = np.random.default_rng(0)
    correct = rng.random(30) < 0.5
    tests = (np.array([3, 4, 5]), np.zeros(0), np.arange(30), np.array([7, 7, 8]), np.zeros(0, dtype=np.int64))
    partition = Partition(tuple(np.arange(2) for _ in tests), client_tests=tests)
    counts = np.array([[1, 1]] * 4 + [[3, 1]])
    scores = client_scores([0.25, 0.75], correct, partition, counts)["each"]
    want = [correct[own].mean() if len(own) else mean for own, mean in zip(tests, [0, 0.5, 0, 0, 0.375], strict=True)]
    assert scores == pytest.approx(want)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"x": "nan"}, "training sample 3 is not finite"),
        ({"std": (0.0,)}, "std is 0; samples are divided by it"),
        ({"mean": (1.0, 2.0)}, "mean must be one finite number, or one for each of 4 channels"),
        ({"mean": (np.nan,)}, "mean must be one finite number"),
        ({"users": np.arange(3)}, "37 training samples but 3 users"),
        ({"x": "list"}, "training samples are list; they must be a numpy array or a torch tensor of numbers"),
        ({"x": "object"}, "training samples are object; they must be"),
        ({"test": "other shape"}, r"training samples have shape \(4,\) and its test samples \(5,\)"),
        (
            {"test": "bytes"},
            "samples are float64, which is floats, and its test samples uint8, which is bytes; give both",
        ),
        ({"classes": "10"}, "toy's classes must be a whole number of at least 1, not '10'"),
        ({"clients": "negative"}, "client 1 holds training sample -1, but toy has 0 to 36"),
        ({"clients": "floats"}, "client 0's training samples must be whole numbers, not float64"),
        ({"client_tests": "few"}, "6 clients, but test samples of 1"),
        ({"client_tests": "far"}, "client 0 holds test sample 99, but toy has 0 to 19"),
        ({"noise": (0.1,)}, "6 clients, but noise for 1"),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused_before_the_first_round(changed, sentence):
    dataset, partition = toy()
    train, x = dataset.train, dataset.train.x.copy()
    for what, how in changed.items():
        if what == "x":
            x[3, 1] = np.nan
            strange = {"nan": x, "list": x.tolist(), "object": x.astype(object)}[how]
            dataset = replace(dataset, train=replace(train, x=strange))
        elif what == "users":
            dataset = replace(dataset, train=replace(train, users=how))
        elif what == "test":
            strange = {"other shape": np.zeros((20, 5)), "bytes": np.zeros((20, 4), dtype=np.uint8)}[how]
            dataset = replace(dataset, test=replace(dataset.test, x=strange))
        elif what in ("mean", "std", "classes"):
            dataset = replace(dataset, **{what: how})
        elif what == "clients":
            wrong = {"negative": np.array([-1, 2]), "floats": np.array([0.0, 1.0])}[how]
            place = 1 if how == "negative" else 0
            partition = replace(partition, clients=(*partition.clients[:place], wrong, *partition.clients[place + 1 :]))
        elif what == "client_tests":
            shares = (np.array([1]),) if how == "few" else (np.array([99]),) * 6
            partition = replace(partition, client_tests=shares)
        else:
            partition = replace(partition, noise=how)
    with pytest.raises(UserError, match=sentence):
        federation("fedavg", data=(dataset, partition))


def test_a_network_that_answers_nonsense_is_told_apart_from_one_that_draws():
    network = torch.nn.Linear(4, 3)
    torch.nn.init.constant_(network.weight, np.nan)

    class Broken(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = network

        def forward(self, x):
            return fb.Outputs(self.head(x), x)

    with pytest.raises(UserError, match="answers to the first sample of toy are not finite"):
        federation("fedavg", module=Broken())


def test_a_round_too_large_for_memory_is_refused_with_what_fits(monkeypatch):
    monkeypatch.setattr("fedbraid.training.run_checks.free_memory", lambda device: 1000)
    with pytest.raises(UserError, match=r"6 clients take .* set sampling.clients to \d or fewer$"):
        federation("skip")
    with pytest.raises(UserError, match=r"set sampling.clients to \d or fewer, or engine.chunk to a few$"):
        federation("fedavg", engine={"kind": "loop"})
    federation("fedavg")
    federation("fedavg", engine={"kind": "loop", "chunk": 2})
    monkeypatch.setattr("fedbraid.training.run_checks.free_memory", lambda device: 10**9)
    federation("skip")


def test_plans_that_cannot_be_held_are_refused():
    with pytest.raises(UserError, match="1,000,000,000 epochs or steps in a round; at most 1,000,000"):
        federation("fedavg", local={"steps": 10**9})


def lines_of(simulation, rounds):
    return [simulation.advance() for _ in range(rounds)]


def test_by_size_larger_clients_come_more_often_and_late_ones_once_they_are_there():
    """Sizes are 5, 1, 12, 7, 3, 9; FedSkip takes it, since as many come in every round."""
    rounds = 60
    e = federation("skip", sampling={"scheme": "by_size", "clients": 2}, rounds=rounds)
    came = np.bincount([k for line in lines_of(e, rounds) for k in line["client_ids"]], minlength=6)
    assert came.sum() == 2 * rounds and came[2] > came[3] > came[1]
    late = {"scheme": "by_size", "clients": 2, "late": 0.5, "late_from": 3, "late_by": 3}
    e = federation(sampling=late, rounds=rounds)
    first, *others = (set(line["client_ids"]) for line in lines_of(e, rounds))
    assert len(first | others[0]) <= 3 and set().union(*others) == set(range(6))
