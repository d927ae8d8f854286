"""Whatever happens to a message: the round goes on without that client or is tried again, and all stay in step."""

import json
import logging
from functools import partial
from itertools import count

import numpy as np
import pytest
import torch
from covering import covering
from safetensors.torch import load_file
from world import (
    NAMES,
    SIZES,
    apart,
    by_message,
    configured,
    finite,
    happening,
    held_apart,
    held_here,
    here,
    lacking,
    nodes,
    rewritten,
    samples,
)

from fedbraid.analyses import analyze
from fedbraid.config.schema import from_dict
from fedbraid.data.sample_facts import Facts
from fedbraid.deploy.client_data import NamedData
from fedbraid.deploy.federation_run import conduct
from fedbraid.deploy.messages import ROOM, read
from fedbraid.deploy.node import Node
from fedbraid.deploy.transport import InProcess
from fedbraid.errors import UserError

EVERYBODY = {"sampling": {"clients": 0}, "rounds": 4}
WHO, NUMBER, ROUND = "clinic-c", 2, 1  # one of whom strands keep something already
CLOSE = 1e-10


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return samples(tmp_path_factory.mktemp("data"))


def ran(config, place, transport, **waiting):
    federation = by_message(config, place, transport, **waiting)
    return federation, [federation.advance() for _ in range(config.rounds)]


KNOWN = {}


def reference(config, lost=None):
    """What one machine makes of it, where those in `lost` do not reply."""
    key = config.method, config.rounds, str(lost)
    if key not in KNOWN:
        local = lacking(here(config), lost or {})
        lines = [local.advance() for _ in range(config.rounds)]
        KNOWN[key] = held_here(local), lines
    return KNOWN[key]


def told_of(caplog, who=WHO):
    return [record.getMessage() for record in caplog.records if record.getMessage().find(who) >= 0]


# --- one answer is not as it should be


def changed(**tensors):
    return lambda question, answer: rewritten(answer, tensors=read(answer, 1 << 30).tensors | tensors)


def without(name):
    def lost(question, answer):
        return rewritten(answer, tensors={k: t for k, t in read(answer, 1 << 30).tensors.items() if k != name})

    return lost


def model(answer):
    return read(answer, 1 << 30).tensors["model"]


def broken(question, answer):
    middle = len(answer) // 2
    return answer[:20] + bytes(255 - b for b in answer[20:40]) + answer[40:middle]


FAULTS = {
    "no answer": (lambda q, a: None, "did not answer"),
    "nothing": (lambda q, a: b"", "no well-formed message"),
    "cut short": (lambda q, a: a[:-1], "no well-formed message"),
    "corrupted": (broken, "no well-formed message"),
    "pickled": (lambda q, a: b"\x80\x04K\x01.", "no well-formed message"),
    "too short a model": (lambda q, a: changed(model=model(a)[:-1])(q, a), "shape"),
    "a matrix": (lambda q, a: changed(model=model(a)[None])(q, a), "shape"),
    "other numbers": (lambda q, a: changed(model=model(a).float())(q, a), "float32, not float64"),
    "not a number": (lambda q, a: changed(model=model(a) * float("nan"))(q, a), "not finite"),
    "one infinity": (lambda q, a: changed(model=model(a).index_fill(0, torch.tensor(3), float("inf")))(q, a), "finite"),
    "no model": (without("model"), "lacks 'model'"),
    "no buffers": (without("buffers"), "lacks 'buffers'"),
    "no strand's": (without("scaffold.change"), "lacks 'scaffold.change'"),
    "more": (changed(more=torch.zeros(1)), "not asked for"),
    "oversized": (changed(more=torch.zeros(ROOM)), "at most"),
    "another run": (lambda q, a: rewritten(a, run="0" * 16), "another run"),
    "a stale round": (lambda q, a: rewritten(a, round=q.round - 1), "round 1, not 2"),
    "another message": (
        lambda q, a: rewritten(a, payload=read(a, 1 << 30).payload | {"to": "0" * 16}),
        "another message",
    ),
    "a question": (lambda q, a: rewritten(a, kind="train"), "kind 'train'"),
    "no work": (lambda q, a: rewritten(a, payload={"to": read(a, 1 << 30).payload["to"]}), "'forward' must be"),
    "less than no work": (
        lambda q, a: rewritten(a, payload=read(a, 1 << 30).payload | {"backward": -1}),
        "'backward' must",
    ),
    "a refusal": (
        lambda q, a: rewritten(a, kind="refusal", payload={"reason": "of \x1b[31mmany\nlines"}),
        "it refused",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_answer_costs_that_client_that_round(fault, file, tmp_path, caplog):
    """One line says who and why; server and clients end as if the client had been away in that round."""
    happens, reason = FAULTS[fault]
    config = configured("scaffold+drift", file, **EVERYBODY)
    transport = happening(config, tmp_path / "homes", {(WHO, ROUND, "train"): happens})
    with caplog.at_level(logging.WARNING):
        federation, lines = ran(config, tmp_path, transport, min_clients=2)
    (said,) = told_of(caplog)
    assert said.startswith(f"round 2 goes on without {WHO}: ") and reason in said and said.isprintable()
    assert [line["lost"] for line in lines] == [0, 1, 0, 0]
    assert [list(line["missing"]) for line in lines] == [[], [WHO], [], []] and reason in lines[1]["missing"][WHO]
    expected, _ = reference(config, {(ROUND, "train"): {NUMBER}})
    held = held_apart(federation, tmp_path / "homes")
    assert finite(held) and apart(held, expected) <= CLOSE
    undisturbed, _ = reference(config)
    assert apart(held, undisturbed) > 1e-4


STATEFUL = ["scaffold", "feddyn", "moon", "feddc", "scaffold(option=1)", "rfedavg", "drift(added=cohort)"]


@pytest.mark.parametrize(("method", "rounds"), covering(STATEFUL, [(0,), (1, 2), (3,)]))
def test_lost_answers_leave_server_and_clients_in_step(method, rounds, file, tmp_path):
    config = configured(method, file, **EVERYBODY)
    when = {(WHO, r, "train"): FAULTS["no answer"][0] for r in rounds}
    federation, _ = ran(config, tmp_path, happening(config, tmp_path / "homes", when), min_clients=1)
    expected, _ = reference(config, {(r, "train"): {NUMBER} for r in rounds})
    assert apart(held_apart(federation, tmp_path / "homes"), expected) <= CLOSE


@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_lost_questions(method, file, tmp_path, caplog):
    config = configured(method, file, **EVERYBODY)

    def on_request(client, message):
        question = read(message, 1 << 30)
        return () if (client, question.round, question.kind) == (WHO, ROUND, "train") else (message,)

    transport = InProcess(nodes(config, tmp_path / "homes"), on_request=on_request)
    federation, _ = ran(config, tmp_path, transport, min_clients=1)
    assert told_of(caplog) == [f"round 2 goes on without {WHO}: it did not answer in time"]
    expected, _ = reference(config, {(ROUND, "train"): {NUMBER}})
    assert apart(held_apart(federation, tmp_path / "homes"), expected) <= CLOSE


def test_letters_that_come_twice_change_nothing(file, tmp_path):
    config = configured("scaffold+rfedavg_plus(lam=0.1)", file, **EVERYBODY)
    transport = InProcess(nodes(config, tmp_path / "homes"), on_request=lambda client, message: (message, message))
    federation, _ = ran(config, tmp_path, transport)
    assert apart(held_apart(federation, tmp_path / "homes"), reference(config)[0]) <= CLOSE


def test_an_answer_that_comes_a_round_late_is_not_averaged(file, tmp_path, caplog):
    """It takes the place of the right one: the client is lost in both rounds."""
    config, late = configured("scaffold", file, **EVERYBODY), []

    def keep(question, answer):
        late.append(answer)

    when = {(WHO, 1, "train"): keep, (WHO, 2, "train"): lambda question, answer: late[0]}
    federation, _ = ran(config, tmp_path, happening(config, tmp_path / "homes", when), min_clients=1)
    assert "it belongs to round 2, not 3" in told_of(caplog)[1]
    expected, _ = reference(config, {(1, "train"): {NUMBER}, (2, "train"): {NUMBER}})
    assert apart(held_apart(federation, tmp_path / "homes"), expected) <= CLOSE


def test_somebody_elses_answer_is_not_taken(file, tmp_path, caplog):
    """Two clients receive the same message, and their answers fit. But states differ after the first round."""
    config, heard = configured("rfedavg", file, **EVERYBODY), {}

    def listen(question, answer):
        heard["answer"] = answer
        return answer

    when = {("clinic-a", 1, "train"): listen, (WHO, 1, "train"): lambda question, answer: heard["answer"]}
    ran(config, tmp_path, happening(config, tmp_path / "homes", when), min_clients=1)
    assert "it answers another message" in told_of(caplog)[0]


# --- the exchange before training


@pytest.mark.parametrize("method", ["rfedavg_plus(lam=0.1)+scaffold", "rfedavg(lam=0.1)"])
@pytest.mark.parametrize("kind", ["probe", "train"])
def test_lost_in_either_exchange(method, kind, file, tmp_path):
    """Who does not answer the first question is not asked the second, and does not count in what the others get."""
    config = configured(method, file, **EVERYBODY)
    place = 0 if method.startswith("rfedavg(") else 1  # rfedavg asks in its first round only
    when = {(WHO, place, kind): FAULTS["no answer"][0]}
    transport = happening(config, tmp_path / "homes", when)
    federation, lines = ran(config, tmp_path, transport, min_clients=1)
    expected, theirs = reference(config, {(place, kind): {NUMBER}})
    assert apart(held_apart(federation, tmp_path / "homes"), expected) <= CLOSE
    assert [line["lost"] for line in lines] == [line["lost"] for line in theirs]
    asked = [read(message, 1 << 30).kind for name, message, _ in transport.sent if name == WHO]
    assert asked.count("train") == config.rounds - (kind == "probe")


# --- who is there


def test_a_client_that_is_away_is_lost_until_it_comes(file, tmp_path, caplog):
    config = configured("scaffold", file, **EVERYBODY)
    transport = InProcess(nodes(config, tmp_path / "homes"))
    federation = by_message(config, tmp_path, transport, min_clients=2)
    federation.advance()
    transport.away = {WHO}
    line = federation.advance()
    assert line["missing"] == {WHO: "it is not connected"}
    transport.away = set()
    federation.advance(), federation.advance()
    assert len(told_of(caplog)) == 1
    expected, _ = reference(config, {(ROUND, "train"): {NUMBER}})
    assert apart(held_apart(federation, tmp_path / "homes"), expected) <= CLOSE


def test_a_late_client_joins_when_it_comes(file, tmp_path):
    """It counts by its own size; the mean size that clients are told stays that of the beginning."""
    config = configured("fedavg", file, **EVERYBODY)
    transport = InProcess(nodes(config, tmp_path / "homes"), away={WHO})
    federation = by_message(config, tmp_path, transport, min_clients=4)
    mean = federation.membership.mean
    assert mean == (sum(SIZES) - SIZES[NUMBER]) / 4
    federation.advance()
    transport.away = set()
    for _ in range(3):
        federation.advance()
    assert federation.membership.mean == mean and federation.sizes.tolist() == list(SIZES)
    expected, _ = reference(config, {(0, "train"): {NUMBER}})
    assert apart(held_apart(federation, tmp_path / "homes"), expected) <= CLOSE


def test_a_late_client_counts_by_its_own_size_from_its_first_round(file, tmp_path, monkeypatch):
    """Also if it comes between two tries of the same round."""
    config = configured("fedavg", file, **EVERYBODY)
    when = {("clinic-a", 0, "train"): some_times(1, FAULTS["no answer"][0])}
    transport = happening(config, tmp_path / "homes", when)
    transport.away = {WHO}
    federation = by_message(config, tmp_path, transport, min_clients=4)
    monkeypatch.setattr("time.sleep", lambda seconds: transport.away.clear() if transport.sent[4:] else None)
    assert federation.advance()["repeated"] == 1
    for _ in range(3):
        federation.advance()
    assert apart(held_apart(federation, tmp_path / "homes"), reference(config)[0]) <= CLOSE


def test_the_server_waits_for_its_clients_and_says_for_whom(file, tmp_path, caplog, monkeypatch):
    config, turn = configured("fedavg", file), count()
    transport = InProcess(nodes(config, tmp_path / "homes"), away=set(NAMES))

    def later(seconds):
        step = next(turn)
        transport.away -= {NAMES[step // 2]} if step % 2 else set()

    monkeypatch.setattr("time.sleep", later)
    with caplog.at_level(logging.INFO):
        by_message(config, tmp_path, transport, min_clients=3)
    waiting = [record.getMessage() for record in caplog.records]
    assert waiting == [
        "0 of 3 clients are connected; waiting for clinic-a, clinic-b, clinic-c, clinic-d, clinic-e",
        "1 of 3 clients are connected; waiting for clinic-b, clinic-c, clinic-d, clinic-e",
        "2 of 3 clients are connected; waiting for clinic-c, clinic-d, clinic-e",
    ]


def test_names_that_are_not_on_the_roster_are_told_of_and_not_asked(file, tmp_path, caplog, monkeypatch):
    config = configured("fedavg", file)
    clients = nodes(config, tmp_path / "homes")
    transport = InProcess(clients | {"Clinic-A": clients["clinic-a"]}, away={"clinic-a"})
    monkeypatch.setattr("time.sleep", lambda seconds: transport.away.clear())
    with caplog.at_level(logging.INFO):
        federation = by_message(config, tmp_path, transport)
    assert "waiting for clinic-a (Clinic-A: not on the roster)" in caplog.records[0].getMessage()
    federation.advance()
    assert "Clinic-A" not in {name for name, _, _ in transport.sent}


def test_a_name_that_is_not_on_the_roster_is_told_of_whenever_it_comes(file, tmp_path, caplog, monkeypatch):
    config, turn = configured("fedavg", file), count()
    clients = nodes(config, tmp_path / "homes")
    transport = InProcess(clients | {"Clinic-A": clients["clinic-a"]}, away={"clinic-a", "Clinic-A"})
    monkeypatch.setattr(
        "time.sleep", lambda seconds: transport.away.discard("clinic-a" if next(turn) > 2 else "Clinic-A")
    )
    with caplog.at_level(logging.INFO):
        by_message(config, tmp_path, transport)
    assert [record.getMessage().partition("waiting for ")[2] for record in caplog.records] == [
        "clinic-a",
        "clinic-a (Clinic-A: not on the roster)",
    ]


def test_a_client_that_has_forgotten_the_run_is_greeted_again(file, tmp_path, caplog):
    """Where strands keep nothing on clients, nothing is lost with a client's disk."""
    import shutil

    config = configured("fedavg", file, **EVERYBODY)
    federation = by_message(config, tmp_path)
    federation.advance()
    shutil.rmtree(tmp_path / "homes" / WHO)
    line = federation.advance()
    assert line["lost"] == 0 and not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_a_client_that_has_lost_its_state_is_not_trained_from_another(file, tmp_path, caplog):
    import shutil

    config = configured("scaffold", file, **EVERYBODY)
    federation = by_message(config, tmp_path, min_clients=1)
    federation.advance()
    shutil.rmtree(tmp_path / "homes" / WHO)
    line = federation.advance()
    assert line["missing"] == {WHO: "it refused: what it kept after round 1 is not here any more"}


# --- rounds that do not count


def some_times(times, happens):
    left = count()
    return lambda question, answer: happens(question, answer) if next(left) < times else answer


@pytest.mark.parametrize("method", ["scaffold", "rfedavg_plus(lam=0.1)+drift", "fedskip"])
def test_a_round_with_too_few_is_tried_again(method, file, tmp_path, caplog):
    """Nobody who came before is out of step, and those who came have their answer saved."""
    config = configured(method, file, **EVERYBODY)
    drop = FAULTS["no answer"][0]
    when = {(name, ROUND, "train"): some_times(2, drop) for name in NAMES[:2]}
    transport = happening(config, tmp_path / "homes", when)
    federation, lines = ran(config, tmp_path, transport, min_clients=0 if method == "fedskip" else 4)
    assert [line["repeated"] for line in lines] == [0, 2, 0, 0] and [line["lost"] for line in lines] == [0, 0, 0, 0]
    said = [record.getMessage() for record in caplog.records if "does not count" in record.getMessage()]
    needed = 5 if method == "fedskip" else 4
    lost = "clinic-a (it did not answer in time), clinic-b (it did not answer in time)"
    assert said == [f"round 2 does not count: 3 of 5 clients came, and {needed} are needed; without {lost}"] * 2
    assert apart(held_apart(federation, tmp_path / "homes"), reference(config)[0]) <= CLOSE


def test_who_stays_away_from_the_first_try_may_come_to_the_second(file, tmp_path):
    """Others are then told something else, and train anew: the first try leaves no trace in anybody's state."""
    config = configured("rfedavg_plus(lam=0.1)+scaffold", file, **EVERYBODY)
    drop = FAULTS["no answer"][0]
    when = {
        ("clinic-a", ROUND, "probe"): some_times(1, drop),
        **{(name, ROUND, "train"): some_times(1, drop) for name in ("clinic-b", "clinic-c")},
    }
    federation, lines = ran(config, tmp_path, happening(config, tmp_path / "homes", when), min_clients=3)
    assert [line["repeated"] for line in lines] == [0, 1, 0, 0]
    assert apart(held_apart(federation, tmp_path / "homes"), reference(config)[0]) <= CLOSE


def test_fixed_cohorts_need_everybody(file, tmp_path):
    config = configured("fedskip+scaffold", file, rounds=2)
    transport = InProcess(nodes(config, tmp_path / "homes"))
    with pytest.raises(UserError, match=r"needs all 3 clients of a round, and min_clients is 1; leave it out"):
        by_message(config, tmp_path / "fewer", transport, min_clients=1)
    federation = by_message(config, tmp_path, transport, tries=2)
    away = federation.cohort().ids[0]
    transport.away = {NAMES[away]}
    with pytest.raises(UserError, match=rf"round 1 was tried 2 times without {NAMES[away]} .*--resume"):
        federation.advance()
    transport.away = set()
    assert federation.advance()["lost"] == 0


def test_after_so_many_tries_the_server_gives_up_and_can_be_resumed(file, tmp_path):
    config = configured("scaffold", file, **EVERYBODY)
    transport = InProcess(nodes(config, tmp_path / "homes"))

    def leave(line, config):
        transport.away = {WHO} if line["round"] == 2 else set()

    settings = {"out": tmp_path / "run", "seconds": 1.0, "pause": 0.0, "tries": 2}
    with pytest.raises(UserError, match=rf"round 3 was tried 2 times without {WHO} \(it is not connected\)"):
        conduct(config, transport, NAMES, on_round=leave, **settings)
    transport.away = set()
    with pytest.raises(UserError, match="already holds a run; add --resume"):
        conduct(config, transport, NAMES, **settings)
    run = conduct(config, transport, NAMES, resume=True, **settings)
    assert [line["round"] for line in run.rounds] == [1, 2, 3, 4]
    local = here(config)
    for _ in range(4):
        local.advance()
    ours, theirs = run.model.state_dict(), local.module().state_dict()
    assert apart(ours, theirs) <= CLOSE


# --- the whole of it


def test_conduct_records_as_a_run_on_one_machine_does(file, tmp_path):
    config = configured("feddyn", file)
    seen = []

    def saved_already(line, config):
        seen.append((line["round"], json.loads((tmp_path / "run/checkpoint/checkpoint.json").read_text())["round"]))

    run = conduct(
        config, InProcess(nodes(config, tmp_path / "homes")), NAMES, out=tmp_path / "run", on_round=saved_already
    )
    assert (
        seen == [(1, 1), (2, 2), (3, 3)]
        and run.summary["rounds"] == 3
        and run.accuracy is not None
        and run.label_counts is None
    )
    with pytest.raises(UserError, match="a federation whose clients keep their data; only `fedbraid serve` goes on"):
        analyze(tmp_path / "run", ["features"])
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert apart(saved, run.model.state_dict()) == 0
    assert run.config.partition.name == "roster" and run.config.partition.clients == 5
    assert (tmp_path / "run" / "summary.json").exists() and len(run.report(tmp_path / "run")) > 0
    again = conduct(config, InProcess({}), NAMES, out=tmp_path / "run", resume=True)  # over: nobody is waited for
    assert apart(again.model.state_dict(), run.model.state_dict()) == 0
    with pytest.raises(UserError, match="was begun with method = 'feddyn'"):
        conduct(configured("fedavg", file), InProcess({}), NAMES, out=tmp_path / "run", resume=True)
    with pytest.raises(UserError, match="begun with the clients clinic-a, clinic-b"):
        conduct(config, InProcess({}), NAMES[::-1], out=tmp_path / "run", resume=True)


def test_a_client_whose_data_changed_does_not_take_part(file, tmp_path, caplog):
    config = configured("fedavg", file, **EVERYBODY)
    clients = nodes(config, tmp_path / "homes")
    federation = by_message(config, tmp_path, InProcess(clients), min_clients=1)
    federation.advance()
    swapped = clients | {WHO: clients["clinic-a"]}  # five samples, not nine
    again = by_message(config, tmp_path, InProcess(swapped), min_clients=1)
    assert told_of(caplog) == [f"{WHO} cannot take part: it has 5 training samples, and had 9 before in this run"]
    assert list(again.advance()["missing"]) == [WHO]


# --- evaluation by the clients


def stated(file, **settings):
    facts = {"name": "clients", "shape": [3], "classes": 3}
    if file.stem == "regression":
        facts = {"name": "clients", "shape": [3], "task": "regression"}
    return configured("fedavg", file, **(EVERYBODY | settings | {"data": facts}))


def with_own_tests(file, config, homes):
    """Clients that hold their part of the archive, for a server that holds nothing."""
    return nodes(configured("fedavg", file, **EVERYBODY), homes)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_without_a_test_set_clients_test_and_the_result_is_pooled(task, tmp_path):
    file = samples(tmp_path, task)
    config = stated(file, evaluate={"every": 2})
    transport = InProcess(with_own_tests(file, config, tmp_path / "homes"))
    _, lines = ran(config, tmp_path, transport)
    local = here(configured("fedavg", file, **EVERYBODY))
    theirs = [local.advance() for _ in range(4)]
    for line, other in zip(lines, theirs, strict=True):
        if line["round"] % 2:
            assert line["accuracy"] is None and line["loss"] is None and "tested_by" not in line
        else:
            assert line["accuracy"] == other["accuracy"] and line["loss"] == pytest.approx(other["loss"], abs=1e-12)
            assert line["tested_by"] == list(NAMES) and line["tests"] == 20 and line["per_class"] is None
    assert (lines[1]["accuracy"] is None) == (task == "regression") and lines[1]["loss"] is not None


@pytest.mark.parametrize(
    ("task", "metrics"), [("classification", ["balanced_accuracy", "auroc", "ece"]), ("regression", ["mae", "r2"])]
)
def test_a_server_with_a_test_set_has_further_metrics(task, metrics, tmp_path):
    file = samples(tmp_path, task)
    config = configured("fedavg", file, **EVERYBODY, evaluate={"metrics": metrics})
    _, lines = ran(config, tmp_path, InProcess(nodes(config, tmp_path / "homes")))
    local = here(config)
    for line in lines:
        theirs = local.advance()
        assert [line[name] for name in metrics] == pytest.approx([theirs[name] for name in metrics], abs=CLOSE)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"tests": 5, "loss": 1.0, "hits": 5}, "it tested on 5 samples, and has 4"),
        ({"tests": 4, "loss": 1.0, "hits": 5}, "5 of its 4 test samples"),
        ({"tests": 4, "loss": -1.0, "hits": 4}, "'loss' must be"),
        ({"tests": 4, "loss": "1", "hits": 4}, "'loss' must be"),
        ({"tests": 4, "loss": 1.0, "hits": 3.5}, "'hits' must be"),
    ],
)
def test_scores_that_cannot_be_are_left_out(told, reason, file, tmp_path, caplog):
    config = stated(file)
    when = {(WHO, 1, "evaluate"): lambda q, a: rewritten(a, payload=told | {"to": read(a, 1 << 30).payload["to"]})}
    transport = happening(configured("fedavg", file, **EVERYBODY), tmp_path / "homes", when)
    line = by_message(config, tmp_path, transport).advance()
    assert line["tests"] == 16 and WHO not in line["tested_by"]
    (said,) = told_of(caplog)
    assert said.startswith(f"round 1 is tested without {WHO}: ") and reason in said


# --- what is asked of a server that cannot be


TWO_CLASSES = {"name": "clients", "shape": [3], "classes": 2}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sampling": {"dropout": 0.5}}, "sampling.dropout plays"),
        ({"sampling": {"scheme": "by_size", "clients": 2}}, "which clients tell when they come"),
        ({"sampling": {"late": 0.5}}, "sampling.late plays"),
        ({"evaluate": {"per_client": True}}, "evaluate.per_client needs"),
        ({"evaluate": {"groups": True}}, "evaluate.groups needs"),
        ({"evaluate": {"metrics": ["mae"]}}, "mae in evaluate.metrics is for a regression"),
        (
            {"data": {"name": "clients", "shape": [3], "classes": 3}, "evaluate": {"metrics": ["auroc"]}},
            "evaluate.metrics needs a test set that the server has",
        ),
        ({"analyses": ["fairness"]}, "the analysis fairness needs"),
        ({"sampling": {"clients": 6}}, "sampling.clients is 6"),
        ({"data": {"name": "clients"}}, "needs data.shape"),
        ({"data": {"name": "clients", "shape": [3]}}, "data.classes says"),
        ({"data": {"name": "clients", "shape": [], "classes": 3}}, "data.shape is"),
        ({"data": {"name": "clients", "shape": [3], "classes": 3, "labels": ["a"]}}, "data.labels"),
        ({"data": {"name": "clients", "shape": [3], "classes": 3, "mean": [1.0]}}, "data.mean and data.std"),
        ({"data": {"name": "clients", "shape": [3], "classes": 3, "colour": 1}}, "data.colour"),
        ({"data": {"name": "clients", "shape": [3], "task": "regression", "ranges": [2.0]}}, "data.ranges"),
        ({"data": {"name": "clients", "shape": [3], "task": "regression"}, "method": "lc"}, "needs class labels"),
        ({"data": TWO_CLASSES, "method": "ntd"}, "no two are left to tell apart"),
    ],
)
def test_refused_at_the_start(settings, reason, file, tmp_path):
    config = configured(settings.pop("method", "fedavg"), file, **settings)
    with pytest.raises(UserError, match=reason):
        conduct(config, InProcess({}), NAMES, out=tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()


@pytest.mark.parametrize(
    ("roster", "more", "reason"),
    [
        ((), {}, "the roster is"),
        (("a", "a"), {}, "the roster is"),
        (("a\n",), {}, "the roster is"),
        (NAMES, {"min_clients": 4}, "min_clients is 4, but a round has 3"),
        (NAMES, {"min_clients": -1}, "at least 0"),
        (NAMES, {"tries": 0}, "at least 1"),
        (NAMES, {"seconds": 0.0}, "above 0"),
    ],
)
def test_refused_rosters_and_numbers(roster, more, reason, file, tmp_path):
    with pytest.raises(UserError, match=reason):
        conduct(configured("fedavg", file), InProcess({}), roster, out=tmp_path / "run", **more)


def test_watches_that_need_no_labels_work(file, tmp_path):
    config = configured("fedavg", file, analyses=["drift"], analysis={"every": 1})
    line, other = by_message(config, tmp_path).advance(), here(config).advance()
    assert (
        {key for key in line if key.startswith("drift.")} == {key for key in other if key.startswith("drift.")} != set()
    )
    assert all(line[key] == pytest.approx(other[key]) for key in other if key.startswith("drift."))


# --- what goes over the wire

PAYLOADS = ["fedavg", "scaffold", "rfedavg_plus", "fedskip", "fedacd", "fednh", "rfedavg", "feddc"]


@pytest.mark.parametrize("method", PAYLOADS)
def test_letters_hold_what_the_method_declares_and_a_small_header(method, file, tmp_path):
    """To the byte: numbers down and up are those of the round's account; the two numbers for the log come on top."""
    config = configured(method, file, rounds=3)
    transport = InProcess(nodes(config, tmp_path / "homes"))
    federation = by_message(config, tmp_path, transport)
    greetings = list(transport.sent)
    assert {read(message, 1 << 30).kind for _, message, _ in greetings} == {"hello"} and len(greetings) == 5
    for _ in range(3):
        transport.sent.clear()
        line = federation.advance()
        down = up = trained = 0
        for _, message, answer in transport.sent:
            question, back = read(message, 1 << 30), read(answer, 1 << 30)
            down, up = down + bytes_in(question), up + bytes_in(back)
            trained += question.kind == "train"
            assert len(message) - bytes_in(question) < 1500 and len(answer) - bytes_in(back) < 1500
        assert (down, up) == (line["bytes_down"], line["bytes_up"] + 2 * 8 * trained)


def bytes_in(message):
    return sum(t.numel() * t.element_size() for t in message.tensors.values())


def test_nobody_is_told_more_than_needed(file, tmp_path):
    """No path of the server's, no labels and no counts of them from clients."""
    config = configured("feddisco", file, **EVERYBODY)
    transport = InProcess(nodes(config, tmp_path / "homes"))
    federation = by_message(config, tmp_path, transport)
    federation.advance()
    for _, message, answer in transport.sent:
        question, back = read(message, 1 << 30), read(answer, 1 << 30)
        assert str(tmp_path) not in json.dumps(question.payload) and str(file) not in json.dumps(question.payload)
        if question.kind == "hello":
            assert set(question.payload) == {"settings", "facts", "population", "network", "client"}
            assert not {"data", "partition", "save", "evaluate"} & set(question.payload["settings"])
            assert set(back.payload) == {"to", "samples", "tests"} and not back.tensors
            assert Facts.read(question.payload["facts"]) == federation.facts
        else:
            assert set(back.payload) == {"to", "forward", "backward"}
            assert set(back.tensors) == {"model", "buffers", "disco.d", "log: loss", "log: samples"}


# --- files of their own


def test_clients_with_files_of_their_own_and_a_server_with_none(tmp_path):
    """Classes go by name: the second client lacks one, and its own numbers for them are others."""
    rng, clients, food = np.random.default_rng(0), {}, ("eggs", "ham", "spam")
    for place, kinds in {"north": food, "south": food[1:], "west": food}.items():
        rows = [f"{10 * food.index(kind) + rng.normal():.3f},{kind}" for kind in kinds for _ in range(20)]
        (tmp_path / f"{place}.csv").write_text("taste,label\n" + "\n".join(rows) + "\n")
        data = {"name": "csv", "path": str(tmp_path / f"{place}.csv"), "standardise": False}
        clients[place] = partial(Node, tmp_path / place, place, NamedData.of({"data": data}), device="cpu")
    config = from_dict(
        {
            "rounds": 12,
            "model": {"name": "mlp", "hidden": [8]},
            "data": {"name": "clients", "features": ["taste"], "labels": list(food), "mean": [10.0], "std": [8.0]},
            "local": {"batch": 8, "epochs": 5},
            "optimizer": {"lr": 0.1, "momentum": 0.9},
            "engine": {"device": "cpu"},
            "evaluate": {"every": 12},
        }
    )
    run = conduct(config, InProcess(clients), list(clients), out=tmp_path / "run")
    assert run.accuracy == 1.0 and run.rounds[-1]["tested_by"] == list(clients)
    sizes = json.loads((tmp_path / "run" / "federation.json").read_text())["sizes"]
    assert sizes == {"north": 48, "south": 32, "west": 48} and run.rounds[-1]["tests"] == 32
