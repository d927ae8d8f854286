"""What clients tell of a model on samples of their own: pooled, by name, and on samples that they hold out."""

import io
import json
import logging

import pytest
from rich.console import Console
from world import (
    NAMES,
    apart,
    by_message,
    configured,
    happening,
    held_apart,
    held_here,
    here,
    nodes,
    rewritten,
    samples,
)

import fedbraid as fb
from fedbraid.cli import run_views as cli_show
from fedbraid.deploy.federation_run import conduct
from fedbraid.deploy.messages import read
from fedbraid.deploy.secure_policy import SecurePolicy
from fedbraid.deploy.transport import InProcess
from fedbraid.errors import UserError

EVERYBODY = {"sampling": {"clients": 0}, "rounds": 3}
HELD = {"evaluate": {"validation": 0.3}}
NAMED = {"evaluate": {"per_client": True}}
SCORES = "validation_accuracy", "validation_loss"
WHO = "clinic-c"
TASKS = pytest.mark.parametrize("task", ["classification", "regression"])


def without_data(file, **settings):
    """The settings of a server that has no data."""
    facts = {"classes": 3} if file.stem == "classification" else {"task": "regression"}
    return configured("fedavg", file, **EVERYBODY | settings | {"data": {"name": "clients", "shape": [3], **facts}})


def clients(file, place):
    return nodes(configured("fedavg", file, **EVERYBODY), place / "homes")


def messages(transport, kind):
    """Questions of a kind with their answers."""
    pairs = ((name, read(message, 1 << 30), read(answer, 1 << 30)) for name, message, answer in transport.sent)
    return [(name, question, answer) for name, question, answer in pairs if question.kind == kind]


# --- samples that clients hold out


@pytest.mark.parametrize(
    ("task", "method"),
    [("classification", "scaffold"), ("classification", "disco(target=cohort)"), ("regression", "scaffold")],
)
def test_a_federation_holds_out_what_a_simulation_does(task, method, tmp_path):
    config = configured(method, samples(tmp_path, task), **EVERYBODY, **HELD)
    federation, local = by_message(config, tmp_path), here(config)
    for _ in range(config.rounds):
        line, other = federation.advance(), local.advance()
        assert [line[key] for key in (*SCORES, "accuracy")] == pytest.approx(
            [other[key] for key in (*SCORES, "accuracy")], abs=1e-10
        )
    assert federation.sizes.tolist() == local.sizes.tolist()
    assert apart(held_apart(federation, tmp_path / "homes"), held_here(local)) < 1e-10
    assert line["validated_by"] == [
        name for name, has in zip(NAMES, (5, 3, 9, 1, 6) - local.sizes, strict=True) if has
    ] and len(line["validated_by"]) in range(2, 5)


@TASKS
def test_where_only_clients_have_data_they_tell_of_both_in_one_letter(task, tmp_path):
    file = samples(tmp_path, task)
    transport = InProcess(clients(file, tmp_path))
    federation = by_message(without_data(file, **HELD), tmp_path, transport)
    local = here(configured("fedavg", file, **EVERYBODY, **HELD))
    for _ in range(3):
        line, other = federation.advance(), local.advance()
        assert [line[key] for key in (*SCORES, "accuracy", "loss")] == pytest.approx(
            [other[key] for key in (*SCORES, "accuracy", "loss")], abs=1e-10
        )
    told = messages(transport, "evaluate")
    assert len(told) == 3 * len(NAMES)
    for name, question, answer in told:
        assert not answer.tensors and "tests" in answer.payload
        assert (
            ("validation" in answer.payload)
            == ("validation" in question.payload.get("parts", []))
            == (name != "clinic-d")
        )


def test_rounds_that_are_not_evaluated_have_no_scores(tmp_path):
    config = without_data(samples(tmp_path), evaluate={"validation": 0.3, "every": 2})
    federation = by_message(config, tmp_path, InProcess(clients(samples(tmp_path), tmp_path)))
    assert [federation.advance()[SCORES[0]] is None for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"validation": 99, "validation_loss": 1.0, "validation_hits": 1}, "it tested on 99 samples, and has"),
        ({"validation": 2, "validation_loss": 1.0, "validation_hits": 3}, "3 of its 2 validation samples"),
        ({"validation": 2, "validation_loss": -1.0, "validation_hits": 1}, "'validation_loss' must be"),
        ({"tests": 4, "loss": 1.0, "hits": 4}, "it tells of test samples, and was asked for validation samples"),
        ({}, "it tells of no samples, and was asked for validation samples"),
    ],
)
def test_scores_that_cannot_be_are_left_out(told, reason, tmp_path, caplog):
    config = configured("fedavg", samples(tmp_path), **EVERYBODY, **HELD)
    when = {(WHO, 1, "evaluate"): lambda q, a: rewritten(a, payload=told | {"to": read(a, 1 << 30).payload["to"]})}
    with caplog.at_level(logging.WARNING):
        line = by_message(config, tmp_path, happening(config, tmp_path / "homes", when)).advance()
    assert WHO not in line["validated_by"] and line["validation_accuracy"] is not None
    assert any(f"round 1 is tested without {WHO}" in said and reason in said for said in caplog.messages)


def test_a_client_that_does_not_say_how_many_were_right_does_not_count_as_wrong(tmp_path, caplog):
    config = configured("fedavg", samples(tmp_path), **EVERYBODY, **HELD)

    def silent(question, answer):
        told = {key: value for key, value in read(answer, 1 << 30).payload.items() if key != "validation_hits"}
        return rewritten(answer, payload=told)

    with caplog.at_level(logging.WARNING):
        line = by_message(
            config, tmp_path, happening(config, tmp_path / "homes", {(WHO, 1, "evaluate"): silent})
        ).advance()
    assert WHO not in line["validated_by"]
    assert any(f"without {WHO}: its scores are not those of a classification" in said for said in caplog.messages)


def test_a_client_that_is_asked_for_what_nobody_knows_refuses(tmp_path):
    file = samples(tmp_path)
    transport = InProcess(clients(file, tmp_path))
    by_message(without_data(file), tmp_path, transport).advance()
    name, message, _ = next(sent for sent in transport.sent if read(sent[1], 1 << 30).kind == "evaluate")
    for parts, reason in ((["training"], "nobody knows of"), (["validation"], "it has no validation samples")):
        answer = read(transport.clients[name]().answer(rewritten(message, payload={"parts": parts})), 1 << 30)
        assert answer.kind == "refusal" and reason in answer.payload["reason"]


def test_resumed_it_goes_on_with_the_same(tmp_path):
    file = samples(tmp_path)
    runs = {}
    for rounds in ([4], [2, 4]):
        place = tmp_path / str(len(rounds))
        for upto in rounds:
            config = without_data(file, **HELD, rounds=upto)
            transport = InProcess(clients(file, place))
            run = conduct(config, transport, NAMES, out=place / "run", resume=True, seconds=1.0, pause=0.0)
        runs[len(rounds)] = [[line[key] for key in (*SCORES, "accuracy")] for line in run.rounds]
    assert runs[1] == runs[2]


def test_what_cannot_be_held_out_is_refused(tmp_path):
    config = configured("fedavg", samples(tmp_path), **EVERYBODY, evaluate={"validation": 1e-9})
    with pytest.raises(UserError, match=r"evaluate\.validation=1e-09 holds out none of the samples"):
        by_message(config, tmp_path)
    held = configured("fedavg", samples(tmp_path), **EVERYBODY, **HELD)
    with pytest.raises(UserError, match="which secure sums do not hide"):
        by_message(held, tmp_path, policy=SecurePolicy())


# --- each client by name


def test_each_clients_accuracy_is_as_in_a_simulation(tmp_path):
    file = samples(tmp_path)
    transport = InProcess(clients(file, tmp_path))
    federation = by_message(without_data(file, **NAMED), tmp_path, transport)
    local = here(configured("fedavg", file, **EVERYBODY, **NAMED))
    for _ in range(3):
        told, other = (each.advance()["client_accuracy"] for each in (federation, local))
        assert (told.pop("names"), told.pop("tests")) == (list(NAMES), [6, 2, 4, 3, 5])
        assert told.keys() == other.keys() and told["each"] == pytest.approx(other["each"])
        assert [told[key] for key in ("mean", "std", "min", "worst10")] == pytest.approx(
            [other[key] for key in ("mean", "std", "min", "worst10")]
        )
    plain = InProcess(clients(file, tmp_path / "plain"))
    by_message(without_data(file), tmp_path / "plain", plain).advance()
    asked = [[set(answer.payload) for _, _, answer in messages(t, "evaluate")][:5] for t in (transport, plain)]
    assert asked[0] == asked[1] == [{"to", "tests", "loss", "hits"}] * 5, "nothing more is told for it"


def test_of_a_regression_it_is_the_loss(tmp_path):
    file = samples(tmp_path, "regression")
    line = by_message(without_data(file, **NAMED), tmp_path, InProcess(clients(file, tmp_path))).advance()
    told = line["client_loss"]
    pooled = sum(n * loss for n, loss in zip(told["tests"], told["each"], strict=True)) / sum(told["tests"])
    assert pooled == pytest.approx(line["loss"]) and told["max"] == told["worst10"] == max(told["each"])
    assert "client_accuracy" not in line


def test_a_client_that_is_away_has_none(tmp_path):
    file = samples(tmp_path)
    when = {(WHO, 1, "evaluate"): lambda question, answer: None}
    transport = happening(configured("fedavg", file, **EVERYBODY), tmp_path / "homes", when)
    told = by_message(without_data(file, **NAMED), tmp_path, transport).advance()["client_accuracy"]
    assert told["each"][2] is None and told["tests"] == [6, 2, 0, 3, 5] and None not in told["each"][3:]


def test_secure_sums_hide_no_more_and_no_less_than_without(tmp_path):
    """Test scores are told in the clear where the server has no data, by name or not (docs/secure.md)."""
    file = samples(tmp_path)
    transport = InProcess(clients(file, tmp_path))
    line = by_message(without_data(file, **NAMED), tmp_path, transport, policy=SecurePolicy()).advance()
    assert None not in line["client_accuracy"]["each"]
    assert {key for _, _, answer in messages(transport, "evaluate") for key in answer.payload} == {
        *("to", "tests", "loss", "hits")
    }


def test_a_server_with_a_test_set_does_not_ask_clients(tmp_path):
    with pytest.raises(
        UserError, match=r"evaluate\.per_client needs clients that test the model .* data\.name=clients"
    ):
        by_message(configured("fedavg", samples(tmp_path), **EVERYBODY, **NAMED), tmp_path)


def test_they_are_kept_shown_and_read_back_by_name(tmp_path):
    file = samples(tmp_path)
    config = without_data(file, evaluate={"per_client": True, "validation": 0.3})
    place = tmp_path / "run"
    run = conduct(config, InProcess(clients(file, tmp_path)), NAMES, out=place, seconds=1.0, pause=0.0)
    last = run.rounds[-1]["client_accuracy"]
    assert run.client_scores == dict(zip(NAMES, last["each"], strict=True))
    assert json.loads((place / "summary.json").read_text())["clients"] == run.client_scores
    back = fb.load(place)
    assert back.client_scores == run.client_scores and back.summary == run.summary and "chosen" in run.summary
    text = io.StringIO()
    cli_show.summary(Console(file=text, width=100), run, place)
    for name, accuracy in run.client_scores.items():
        assert f"{name}  {100 * accuracy:.2f} %" in text.getvalue()
    assert "chosen by validation" in text.getvalue()
