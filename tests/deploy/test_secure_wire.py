"""Secure sums by messages: the result is as in the clear, whoever is lost on the way, and messages show no numbers."""

import json
import logging
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from covering import covering, rest_slow
from world import (
    NAMES,
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

pytest.importorskip("cryptography")

from safetensors.numpy import load_file

from fedbraid.config.schema import DataConfig
from fedbraid.deploy import node as node_module
from fedbraid.deploy.client_home import ClientHome
from fedbraid.deploy.federation_run import conduct
from fedbraid.deploy.identity import Identity, PublicKeys
from fedbraid.deploy.keys import make_keys, read_roster
from fedbraid.deploy.messages import read
from fedbraid.deploy.secagg.participant import Participant
from fedbraid.deploy.secagg.protocol import Session
from fedbraid.deploy.secure_policy import SecurePolicy
from fedbraid.deploy.transport import InProcess
from fedbraid.errors import UserError

EVERYBODY = {"sampling": {"clients": 0}, "rounds": 3}
METHODS = [
    "fedavg",
    "fedprox",
    "scaffold",
    "feddyn",
    "drift(by_size=True)+disco",  # weights that differ, and plain sums of models beside
    "drift(added=cohort)",
    "feddc",
    "disco",
    "disco(target=cohort)",
    "fedacd",
    "fednh",
    "creff(head_epochs=2, match_steps=2)",
    "fednova",
    "qfair",
    "rfedavg_plus(lam=0.1)+scaffold",
    "skip(every=2)+scaffold",
]
WHO, NUMBER, ROUND = "clinic-c", 2, 1
STEPS = ["share", "mask", "reveal"]

pytestmark = pytest.mark.usefixtures("shared_draws")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return samples(tmp_path_factory.mktemp("data"))


def secure(config, place, transport=None, **more):
    return by_message(config, place, transport, policy=SecurePolicy(), **more)


def dtype(name):
    return {"engine": {"device": "cpu", "dtype": name, "kind": "loop", "workers": 1}}


@pytest.mark.parametrize("number", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", rest_slow(METHODS, {*METHODS[::2], "disco(target=global)"}.__contains__))
def test_as_on_one_machine(method, number, file, tmp_path):
    config = configured(method, file, sampling={"clients": 4}, **dtype(number))
    local, remote = here(config), secure(config, tmp_path)
    for _ in range(config.rounds):
        one, other = local.advance(), remote.advance()
        assert one["lost"] == other["lost"] == 0
        assert one["train_loss"] == pytest.approx(other["train_loss"], abs=1e-6)
    ours, theirs = held_here(local), held_apart(remote, tmp_path / "homes")
    assert finite(ours) and apart(ours, theirs) <= (1e-9 if number == "float64" else 1e-6)
    assert apart({"w": ours["w"]}, {"w": local.setup.w}) > 1e-4


# --- exchanges


def kinds(transport, round):
    asked = [(read(message, 1 << 30), name) for name, message, _ in transport.sent]
    return [message.kind for message, name in asked if message.round == round and name == NAMES[0]]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("fedavg", ["train", "share", "mask", "reveal"]),
        ("drift(by_size=True)+disco", ["train", "share", "mask", "reveal"]),
        ("disco(target=cohort)", ["probe", "share", "mask", "reveal", "train", "share", "mask", "reveal"]),
        ("rfedavg_plus(lam=0.1)+scaffold", ["probe", "train", "share", "mask", "reveal"]),
    ],
)
def test_a_round_has_three_more_exchanges_for_all_its_sums(method, expected, file, tmp_path):
    config = configured(method, file, **EVERYBODY)
    transport = InProcess(nodes(config, tmp_path / "homes"))
    federation = secure(config, tmp_path, transport)
    federation.advance()
    assert kinds(transport, 0) == expected


def test_what_crosses_is_counted(file, tmp_path):
    config = configured("scaffold", file, **EVERYBODY)
    transport = InProcess(nodes(config, tmp_path / "homes"))
    federation = secure(config, tmp_path, transport)
    line, size = federation.advance(), federation.setup.w.numel()
    protocol = 0
    for _, message, answer in transport.sent:
        told, kind = read(answer, 1 << 30).payload, read(message, 1 << 30).kind
        protocol += sum(len(told[key]) for key in ("advert", "shares", "revealed") if key in told and kind != "hello")
    assert line["bytes_up"] == 5 * 2 * size * 8 + protocol  # the model and the change of the control variate


# --- clients that are lost on the way


def lost_at(step, times=1):
    """What happens to the answers of one client: the message of that kind finds it gone."""
    left = [times]

    def gone(question, answer):
        left[0] -= 1
        return None if left[0] >= 0 else answer

    return {(WHO, ROUND, step): gone}


@pytest.mark.parametrize(("step", "method"), covering(STEPS, ["disco", "scaffold", "feddyn", "fedavg", "qfair"]))
def test_lost_at_any_step_is_as_lost_while_training(method, step, file, tmp_path):
    """Once its numbers have come it need not be there any more: its part in the sum is recovered."""
    config = configured(method, file, **EVERYBODY)
    transport = happening(config, tmp_path / "homes", lost_at(step))
    remote = secure(config, tmp_path, transport, min_clients=3)
    lines = [remote.advance() for _ in range(config.rounds)]
    local = lacking(here(config), {(ROUND, "train"): {NUMBER}} if step != "reveal" else {})
    theirs = [local.advance() for _ in range(config.rounds)]
    assert [line["lost"] for line in lines] == [line["lost"] for line in theirs]
    assert list(lines[ROUND]["missing"]) == ([] if step == "reveal" else [WHO])
    assert apart(held_here(local), held_apart(remote, tmp_path / "homes")) <= 1e-9
    again = kinds(transport, ROUND).count("mask")
    anew = step == "mask" and method == "disco"  # elsewhere the weights of the others only grow in proportion
    assert again == (2 if anew else 1)


@pytest.mark.parametrize("step", STEPS)
def test_lost_in_the_sum_of_a_probe(step, file, tmp_path):
    config = configured("disco(target=cohort)+scaffold", file, **EVERYBODY)
    transport = happening(config, tmp_path / "homes", lost_at(step))
    remote = secure(config, tmp_path, transport, min_clients=3)
    local = lacking(here(config), {(ROUND, "probe"): {NUMBER}} if step != "reveal" else {})
    for _ in range(config.rounds):
        assert remote.advance()["lost"] == local.advance()["lost"]
    assert apart(held_here(local), held_apart(remote, tmp_path / "homes")) <= 1e-9


def test_two_lost_one_after_the_other(file, tmp_path):
    config = configured("disco(a=0.05)+scaffold", file, **EVERYBODY)  # all clients keep some weight
    when = {(WHO, ROUND, "mask"): lambda q, a: None, ("clinic-a", ROUND, "advert"): lambda q, a: None}
    remote = secure(config, tmp_path, happening(config, tmp_path / "homes", when), min_clients=3)
    local = lacking(here(config), {(ROUND, "train"): {NUMBER, 0}})
    for _ in range(config.rounds):
        assert remote.advance()["lost"] == local.advance()["lost"]
    assert apart(held_here(local), held_apart(remote, tmp_path / "homes")) <= 1e-9


@pytest.mark.parametrize("step", STEPS)
def test_with_too_few_left_the_round_is_tried_again(step, file, tmp_path, caplog):
    """At `reveal` nobody answers the first time; shares are then asked for again, and the round goes on."""
    config = configured("disco+scaffold", file, **EVERYBODY)
    when = {}
    for name in NAMES[:3] if step != "reveal" else NAMES:
        when |= {(name, ROUND, step): lost_at(step)[WHO, ROUND, step]}
    remote = secure(config, tmp_path, happening(config, tmp_path / "homes", when), min_clients=3)
    lines = [remote.advance() for _ in range(config.rounds)]
    assert lines[ROUND]["repeated"] == (0 if step == "reveal" else 1) and lines[ROUND]["lost"] == 0
    local = here(config)
    for _ in range(config.rounds):
        local.advance()
    assert apart(held_here(local), held_apart(remote, tmp_path / "homes")) <= 1e-9


def test_a_sum_that_was_learned_is_not_made_again_with_others(file, tmp_path):
    """The round fails after its probe's sum; the second try takes that sum, though a client of it is gone."""
    config = configured("disco(target=cohort)", file, **EVERYBODY)
    when = {
        (name, ROUND, "train"): lost_at("train", 9 if name == WHO else 1)[WHO, ROUND, "train"] for name in NAMES[:3]
    }
    transport = happening(config, tmp_path / "homes", when)
    remote = secure(config, tmp_path, transport, min_clients=3)
    lines = [remote.advance() for _ in range(config.rounds)]
    assert lines[ROUND]["repeated"] == 1 and list(lines[ROUND]["missing"]) == [WHO]
    assert kinds(transport, ROUND).count("probe") == 1
    local = lacking(here(config), {(ROUND, "train"): {NUMBER}})
    for _ in range(config.rounds):
        local.advance()
    assert apart(held_here(local), held_apart(remote, tmp_path / "homes")) <= 1e-9


# --- a server that is killed between the sum and its checkpoint


def test_a_server_that_forgets_a_sum_learns_the_same_again(file, tmp_path):
    """Who was lost then is left out, though it is back: another sum of the same numbers would tell its part."""
    config = configured("disco+scaffold", file, **EVERYBODY)
    when = {(WHO, 0, "mask"): lost_at("mask")[WHO, ROUND, "mask"]}
    transport = happening(config, tmp_path / "homes", when)
    first = secure(config, tmp_path, transport, min_clients=3)
    first.advance()
    again = secure(config, tmp_path, InProcess(nodes(config, tmp_path / "homes")), min_clients=3)
    line = again.advance()
    assert line["missing"] == {WHO: "the others' numbers were summed without it before"}
    one, other = held_apart(first, tmp_path / "homes"), held_apart(again, tmp_path / "homes")
    assert apart(one, other) <= 1e-12


def test_clients_are_summed_with_the_same_others_only(file, tmp_path):
    config = configured("scaffold", file, **EVERYBODY)
    secure(config, tmp_path).advance()
    transport = InProcess(nodes(config, tmp_path / "homes"), away={WHO})
    again = secure(config, tmp_path, transport, min_clients=3, tries=1)
    with pytest.raises(UserError, match="round 1 was tried 1 times"):
        again.advance()
    refusals = [read(answer, 1 << 30).payload.get("reason") for _, _, answer in transport.sent]
    assert "its numbers of this round were summed with other clients before" in refusals


def test_letters_that_come_twice_are_answered_alike(file, tmp_path):
    """Each message meets a new process, as if the one before had been killed after it answered."""
    config = configured("drift(by_size=True)+disco", file, **EVERYBODY)
    answers = {}

    def on_reply(client, message, answer):
        assert answers.setdefault((client, message), answer) == answer
        return answer

    transport = InProcess(nodes(config, tmp_path / "homes"), lambda client, message: (message, message), on_reply)
    remote, local = secure(config, tmp_path, transport), here(config)
    for _ in range(config.rounds):
        remote.advance(), local.advance()
    assert apart(held_here(local), held_apart(remote, tmp_path / "homes")) <= 1e-9


# --- what the server sees

SEEN = {"model": {"name": "mlp", "hidden": [64]}, "sampling": {"clients": 0}, "rounds": 2}


def seen_of(method, file, place):
    """All answers of one client in a round, and what it hid in it."""
    config = configured(method, file, **SEEN)
    transport = InProcess(nodes(config, place / "homes"))
    federation = secure(config, place, transport)
    federation.advance()
    transport.sent.clear()
    start, frozen = federation.server.w, federation.model.frozen
    start = (start if frozen is None else start[~frozen]).numpy()
    federation.advance()
    folder = ClientHome(place / "homes" / WHO, federation.membership.run).folder
    secrets = {}
    for kept in sorted(folder.glob("hidden-000001-*.safetensors")):
        secrets |= load_file(kept)
    return [answer for name, _, answer in transport.sent if name == WHO], secrets, start


def complaints(answers, secrets, start):
    """What of `secrets` shows in the answers: numbers as they are, or vectors that go with them."""
    found = set()
    for answer in answers:
        for key, values in secrets.items():
            numbers = {n for n in values.reshape(-1).tolist() if n not in (0.0, 1.0, 2.0, 3.0)}
            for kind in (np.float64, np.float32):
                if any(kind(number).tobytes() in answer for number in numbers):
                    found.add(f"the numbers of {key}")
        for name, tensor in read(answer, 1 << 30).tensors.items():
            vector = tensor.double().numpy().reshape(-1)
            for key, values in secrets.items():
                views = [values.reshape(-1)] + ([values - start] if key == "model" else [])
                if any(goes_with(vector, view) for view in views):
                    found.add(f"{name} goes with {key}")
    return found


def goes_with(vector, secret):
    """Whether some stretch of a vector correlates with a secret, more than noise does once in a billion times."""
    size = len(secret)
    if size < 50 or len(vector) < size or secret.std() == 0:
        return False
    stretches = np.lib.stride_tricks.sliding_window_view(vector / np.abs(vector).max(), size)
    stretches = stretches - stretches.mean(1, keepdims=True)
    secret = (secret - secret.mean()) / np.linalg.norm(secret - secret.mean())
    return bool(np.abs(stretches @ secret / np.linalg.norm(stretches, axis=1).clip(1e-300)).max() > 7 / np.sqrt(size))


HIDING = {
    "fedavg": set(),
    "scaffold": {"scaffold.change"},
    "drift(added=cohort)": {"drift.h"},
    "fednh": {"nh.mean", "nh.n"},
    "creff(head_epochs=2, match_steps=2)": {"creff.weight", "creff.bias", "creff.has"},
    "disco(target=cohort)": {"disco.counts"},
}


@pytest.mark.parametrize("method", HIDING)
def test_nothing_of_a_client_shows_in_its_letters(method, file, tmp_path):
    answers, secrets, start = seen_of(method, file, tmp_path)
    assert HIDING[method] | {"model", "buffers"} == secrets.keys()
    assert len(answers) == (8 if method.startswith("disco") else 4)
    assert complaints(answers, secrets, start) == set()
    allowed = {"to", "forward", "backward", "advert", "shares", "revealed"}
    for answer in answers:
        message = read(answer, 1 << 30)
        assert message.payload.keys() <= allowed and not message.tensors.keys() & secrets.keys()


def test_a_model_in_the_clear_would_show(file, tmp_path, monkeypatch):
    monkeypatch.setattr(node_module, "hidden", lambda chain: chain.sum_only)
    with pytest.raises(UserError, match=r"it has '(model|buffers)', which was not asked for"):
        seen_of("scaffold", file, tmp_path)
    config = configured("scaffold", file, **SEEN)
    answers = []
    transport = InProcess(nodes(config, tmp_path / "other"), on_reply=lambda c, q, a: answers.append(a) or a)
    remote = by_message(config, tmp_path / "plain", transport)
    remote.advance()
    model = read(answers[-1], 1 << 30).tensors["model"].numpy()
    shown = complaints(answers[-1:], {"model": model}, remote.setup.w.numpy())
    assert {"the numbers of model", "model goes with model"} <= shown


def test_numbers_without_masks_would_show(file, tmp_path, monkeypatch):
    real = Participant.mask

    def bare(self, message, numbers, terms):
        real(self, message, numbers, terms)
        return numbers

    monkeypatch.setattr(Participant, "mask", bare)
    monkeypatch.setattr("fedbraid.deploy.secagg.aggregator.add_mask", lambda *args: None)
    answers, secrets, start = seen_of("scaffold", file, tmp_path)
    shown = complaints(answers, secrets, start)
    assert {"masked goes with model", "masked goes with scaffold.change"} <= shown


# --- what a client refuses, and a server


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"parts": [["log: loss", [1.0] * 5]]}, "which is not to be summed"),
        ({"parts": [["scaffold.change", [0.5] * 5]]}, "of which only plain ones are to be had"),
        ({"parts": [["model", [1.0, 0.0, 0.0, 0.0, 0.0]]]}, "in which 1 clients count"),
        ({"parts": []}, "must say what is summed"),
        ({"names": [*NAMES[1:], "clinic-f"]}, "the terms are for other clients"),
        ({"sum": 5}, "it knows nothing of this sum"),
        ({"bound": 1e-6}, "beyond the bound"),
        ({"delivery": 5}, "it lacks 'delivery'"),
    ],
)
def test_what_a_client_does_not_mask(change, reason, file, tmp_path):
    config = configured("scaffold", file, **EVERYBODY)

    def on_request(client, message):
        question = read(message, 1 << 30)
        if client == WHO and question.kind == "mask":
            terms = json.loads(question.payload["terms"])
            payload = {**question.payload, "terms": json.dumps(terms | change)}
            if not change.keys() & terms.keys():
                payload = {**question.payload, **change}
            message = rewritten(message, payload=payload)
        return (message,)

    transport = InProcess(nodes(config, tmp_path / "homes"), on_request)
    secure(config, tmp_path, transport, min_clients=3).advance()
    kind = [read(a, 1 << 30) for name, q, a in transport.sent if name == WHO and read(q, 1 << 30).kind == "mask"]
    assert kind[0].kind == "refusal" and reason in kind[0].payload["reason"]


def test_numbers_beyond_the_bound_cost_the_round_that_client(file, tmp_path, caplog):
    config = configured("fedavg", file, **EVERYBODY)
    remote = by_message(config, tmp_path, policy=SecurePolicy(bound=1e-3), tries=1)
    with pytest.raises(UserError, match="round 1 was tried"):
        remote.advance()
    assert any("is beyond the bound of 0.001" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("method", "settings", "more", "reason"),
    [
        ("fedskip", {}, {}, "would hide nothing of skip"),
        ("fedavg", {"sampling": {"clients": 2}}, {}, "over at least 3 clients, and a round has 2"),
        ("fedavg", {"sampling": {"scheme": "bernoulli"}}, {}, "set sampling.scheme=fixed"),
        ("fedavg", {}, {"threshold": 4}, "over at least 4 clients, and a round has 3"),
        ("fedavg", {}, {"bound": 0.0}, "the bound of secure sums"),
        ("fedavg", {"analyses": ["drift"]}, {}, "the analysis drift looks at single models"),
    ],
)
def test_refused_at_the_start(method, settings, more, reason, file, tmp_path):
    config = configured(method, file, **settings)
    with pytest.raises(UserError, match=reason):
        conduct(config, InProcess({}), NAMES, out=tmp_path / "run", secure=True, **more)


@pytest.mark.parametrize(
    ("method", "hides", "shows"),
    [
        ("scaffold+disco", "model, buffers, scaffold.change", "log: loss, log: samples, disco.d"),
        ("skip+scaffold", "scaffold.change", "model, buffers, log: loss, log: samples"),
    ],
)
def test_the_log_says_what_is_hidden(method, hides, shows, file, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        secure(configured(method, file), tmp_path)
    (said,) = [record.getMessage() for record in caplog.records if "secure sums" in record.getMessage()]
    single = f"{shows} one by one, and of each client how many samples it has to train and to test on"
    assert said == f"secure sums: the server learns {hides} only as sums over clients; {single}"


def test_the_log_says_what_clients_tell_of_their_tests(file, tmp_path, caplog):
    """They test the model where the server cannot, and the numbers that they answer with are not masked."""
    config = configured("fedavg", file)
    theirs = replace(config, data=DataConfig("clients", {"shape": [3], "classes": 3}))
    with caplog.at_level(logging.INFO):
        secure(theirs, tmp_path, transport=InProcess(nodes(config, tmp_path / "homes")))
    (said,) = [record.getMessage() for record in caplog.records if "secure sums" in record.getMessage()]
    assert said.endswith("the sum of its own test samples' losses and how many of them were right")


def test_the_whole_of_it(file, tmp_path):
    config = configured("scaffold", file)
    run = conduct(config, InProcess(nodes(config, tmp_path / "homes")), NAMES, out=tmp_path / "run", secure=True)
    local = here(config)
    for _ in range(3):
        local.advance()
    assert apart(run.model.state_dict(), local.module().state_dict()) <= 1e-9


# --- signed keys


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    place = tmp_path_factory.mktemp("keys") / "federation"
    make_keys(place, [], NAMES)
    return place


def with_identities(config, homes, keys, roster):
    clients = nodes(config, homes)
    return {n: partial(c, identity=Identity(keys / n / "node.key", roster)) for n, c in clients.items()}


def test_signed_keys(keys, file, tmp_path):
    config, roster = configured("scaffold", file, **EVERYBODY), keys / "server" / "roster"
    known = PublicKeys({member.name: member.key for member in read_roster(roster)})
    transport = InProcess(with_identities(config, tmp_path / "homes", keys, roster))
    conduct(config, transport, NAMES, out=tmp_path / "run", secure=True, verify=known.verify)
    unsigned = with_identities(config, tmp_path / "other", keys, roster)
    unsigned[WHO] = nodes(config, tmp_path / "other")[WHO]
    remote = by_message(config, tmp_path, InProcess(unsigned), 3, policy=SecurePolicy(verify=known.verify))
    assert remote.advance()["missing"] == {WHO: f"the keys of {WHO} are not signed by {WHO}"}


def test_a_server_between_clients_is_found_out(keys, file, tmp_path, caplog):
    """It hands out keys of its own in a client's name."""
    config, roster = configured("fedavg", file, **EVERYBODY), keys / "server" / "roster"

    def on_reply(client, message, answer):
        opened, question = read(answer, 1 << 30), read(message, 1 << 30)
        if client != WHO or question.kind != "train":
            return answer
        forged = Participant(Session(opened.run, opened.round, "train", question.payload["sum"]), WHO).advert()
        return rewritten(answer, payload={**opened.payload, "advert": forged.decode()})

    transport = InProcess(with_identities(config, tmp_path / "homes", keys, roster), on_reply=on_reply)
    remote = secure(config, tmp_path, transport, min_clients=3, tries=1)
    with pytest.raises(UserError, match=f"the keys of {WHO} are not signed by {WHO}"):
        remote.advance()


# --- clients that insist on them


def insisting(config, homes):
    return {name: partial(client, secure=True) for name, client in nodes(config, homes).items()}


def test_a_client_that_insists_on_secure_sums_takes_part_in_them(file, tmp_path):
    config = configured("scaffold", file, **EVERYBODY)
    remote = secure(config, tmp_path, InProcess(insisting(config, tmp_path / "homes")))
    assert remote.advance()["lost"] == 0


@pytest.mark.parametrize(("method", "policy"), [("scaffold", None), ("skip(every=2)+scaffold", SecurePolicy())])
def test_and_in_nothing_else(method, policy, file, tmp_path):
    """Neither in the clear, nor where models stay in the clear though something else is hidden."""
    config = configured(method, file, **EVERYBODY)
    transport = InProcess(nodes(config, tmp_path / "homes"))
    by_message(config, tmp_path, transport, policy=policy)
    name, hello, _ = transport.sent[0]
    refusal = read(insisting(config, tmp_path / "other homes")[name]().answer(hello), 1 << 30)
    assert refusal.kind == "refusal"
    assert refusal.payload["reason"] == "it takes part only where the server learns models as sums (serve --secure)"
