"""A client answers any message, from what lies on its disk alone, and the same again if it is asked again."""

import logging
import os
import random
import re
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import world
from forks import FORKS
from world import (
    NAMES,
    SIZES,
    TESTS,
    apart,
    by_message,
    configured,
    held_apart,
    held_here,
    here,
    nodes,
    rewritten,
    samples,
)

from fedbraid.config.schema import from_dict
from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.data.sample_facts import Facts
from fedbraid.deploy.client_data import ClientData, NamedData
from fedbraid.deploy.client_home import ClientHome, MessageRef
from fedbraid.deploy.messages import Message, digest, read
from fedbraid.deploy.node import Node
from fedbraid.deploy.transport import InProcess
from fedbraid.engines.local_engine import Local
from fedbraid.errors import UserError

EVERYBODY = {"sampling": {"clients": 0}, "rounds": 4}
METHOD = "scaffold+rfedavg_plus(lam=0.1)+moon"
WHO, PART = "clinic-c", 2


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return samples(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def messages(file, tmp_path_factory):
    """Every message to one client in a run of four rounds, with its answer."""
    config, place = configured(METHOD, file, **EVERYBODY), tmp_path_factory.mktemp("there")
    transport = InProcess(nodes(config, place))
    federation = by_message(config, place, transport)
    for _ in range(4):
        federation.advance()
    return [(message, answer) for name, message, answer in transport.sent if name == WHO]


def client(file, home, method=METHOD):
    return nodes(configured(method, file, **EVERYBODY), home)[WHO]()


def opened(answer):
    return read(answer, 1 << 30)


def refusal(answer):
    message = opened(answer)
    assert message.kind == "refusal" and not message.tensors
    return message.payload["reason"]


# --- answers depend on the disk alone


def test_a_client_is_cheap_to_make_and_reads_nothing_before_a_letter_comes(tmp_path):
    class Untouched:
        def load(self):
            raise AssertionError

    began = time.perf_counter()
    for _ in range(1000):
        Node(tmp_path / "home", "a", Untouched())
    assert time.perf_counter() - began < 1 and not (tmp_path / "home").exists()


def test_the_same_letters_give_the_same_answers_elsewhere(messages, file, tmp_path):
    assert [opened(message).kind for message, _ in messages] == ["hello", *["probe", "train"] * 4]
    for message, answer in messages:
        assert client(file, tmp_path / "here").answer(message) == answer


def test_asked_again_it_answers_without_doing_it_again(messages, file, tmp_path, monkeypatch):
    for message, _ in messages[:-1]:
        client(file, tmp_path / "here").answer(message)
    monkeypatch.setattr(Local, "run", None)
    assert client(file, tmp_path / "here").answer(messages[-2][0]) == messages[-2][1]
    assert "it failed" in refusal(client(file, tmp_path / "here").answer(messages[-1][0]))


def test_a_letter_that_comes_late_and_again_leaves_newer_states_alone(messages, file, tmp_path):
    """Messages of rounds that are long over: answered or refused, and the next round is as it would have been."""
    for message, _ in messages[:-2]:
        client(file, tmp_path / "here").answer(message)
    for message, _ in reversed(messages[1:-2]):
        client(file, tmp_path / "here").answer(message)
    for message, answer in messages[-2:]:
        assert client(file, tmp_path / "here").answer(message) == answer


def test_training_begins_from_the_state_that_counted(messages, file, tmp_path):
    """Told that its answer of round 2 did not count, a client does what one does that was not there in round 2."""
    (probe, _), (train, answer) = messages[5:7]
    first = [0, digest(messages[2][0])]
    assert opened(train).payload["counted"] == opened(probe).payload["counted"] == [1, digest(messages[4][0])]
    probe = rewritten(probe, payload=opened(probe).payload | {"counted": first})
    train = rewritten(train, payload=opened(train).payload | {"counted": first, "after": [2, digest(probe)]})
    answers = []
    for seen in (messages[:5], messages[:3]):
        node = client(file, tmp_path / f"after {len(seen)}")
        answers.append([node.answer(message) for message in (*(message for message, _ in seen), probe, train)][-1])
    assert answers[0] == answers[1]
    change = opened(answers[0]).tensors["scaffold.change"] - opened(answer).tensors["scaffold.change"]
    assert float(change.abs().max()) > 1e-6


def test_few_files_are_kept_however_many_rounds_there_are(file, tmp_path):
    """Also if nothing of what a client sends ever counts."""
    config = configured("scaffold", file, sampling={"clients": 0}, rounds=12)
    lose = {(WHO, r, "train"): (lambda q, a: None) for r in range(3, 12)}
    transport = world.happening(config, tmp_path / "homes", lose)
    federation = by_message(config, tmp_path, transport, min_clients=1)
    for _ in range(12):
        federation.advance()
        for name in NAMES:
            held = [f.name for f in (tmp_path / "homes" / name / federation.membership.run).iterdir()]
            assert len(held) <= 6, held


def test_two_runs_do_not_meet(file, tmp_path):
    config = configured("scaffold", file, **EVERYBODY)
    clients, expected = nodes(config, tmp_path / "homes"), here(config)
    runs = [by_message(config, tmp_path / name, InProcess(clients)) for name in ("one", "other")]
    for _ in range(3):
        expected.advance()
        for federation in runs:
            federation.advance()
    for federation in runs:
        assert apart(held_apart(federation, tmp_path / "homes"), held_here(expected)) < 1e-10


# --- killed


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_crash_at_any_file_operation_changes_no_answer(messages, file, tmp_path, monkeypatch, at):
    """At every operation of a probe or a training in turn: asked again, the client answers as if nothing had been."""

    class Crash(BaseException):
        """The machine stops here."""

    def crashing(patch, where):
        calls = []
        for name, function in {"replace": os.replace, "fsync": os.fsync, "unlink": os.unlink}.items():

            def operation(*args, real=function, **kwargs):
                calls.append(real)
                if len(calls) > where >= 0:
                    raise Crash
                return real(*args, **kwargs)

            patch.setattr(os, name, operation)
        return calls

    before, (message, answer), after = messages[: 2 * at], messages[2 * at], messages[2 * at + 1 :]
    with monkeypatch.context() as patch:
        for earlier, _ in before:
            client(file, tmp_path / "counted").answer(earlier)
        calls = crashing(patch, -1)
        client(file, tmp_path / "counted").answer(message)
    assert len(calls) >= 6
    for where in range(len(calls)):
        home = tmp_path / f"home-{where}"
        for earlier, _ in before:
            client(file, home).answer(earlier)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crashing(patch, where)
            client(file, home).answer(message)
        assert client(file, home).answer(message) == answer
        for later, due in after[:2]:
            assert client(file, home).answer(later) == due


class Elsewhere:
    """A client whose messages are answered by processes of their own, the first of which are killed."""

    def __init__(self, config, homes, rng):
        self.config, self.homes, self.rng, self.killed = config, homes, rng, []

    def answer(self, message):
        place = self.homes / f"{digest(message)}.letter"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(message)
        waiting = [self.rng.uniform(0.02, 0.3) for _ in range(3 if opened(message).kind == "train" else 0)]
        for seconds in (*waiting, None):
            process = FORKS.Process(target=world.answered, args=(self.homes, self.config, PART, place))
            process.start()
            process.join(seconds)
            if process.exitcode is None:
                os.kill(process.pid, signal.SIGKILL)
                process.join()
            self.killed.append(process.exitcode)
        return place.with_suffix(".answer").read_bytes()


@pytest.mark.slow
def test_killed_in_the_middle_of_training_it_does_the_same_again(file, tmp_path):
    config = configured("scaffold", file, sampling={"clients": 0}, rounds=3, local={"batch": 3, "epochs": 150})
    one = Elsewhere(config, tmp_path / "homes", random.Random(3))
    federation = by_message(config, tmp_path, InProcess(nodes(config, tmp_path / "homes") | {WHO: lambda: one}))
    local = here(config)
    for _ in range(3):
        federation.advance(), local.advance()
    assert one.killed.count(-signal.SIGKILL) >= 3 and one.killed.count(0) >= 4
    assert apart(held_apart(federation, tmp_path / "homes"), held_here(local)) < 1e-10


# --- messages that are none


def test_whatever_comes_is_answered(messages, file, tmp_path):
    rng, good = random.Random(0), messages[2][0]
    contents = [b"", b"\xff" * 200, good[:-1], good[:100]]
    for _ in range(200):
        broken = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        contents.append(bytes(broken))
    for content in contents:
        answer = opened(client(file, tmp_path / "here").answer(content))
        assert (
            answer.kind == "refusal" and answer.payload["to"] == digest(content) and len(answer.payload["reason"]) < 300
        )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "sing"}, "nothing is known of messages of kind 'sing'"),
        ({"run": "../../elsewhere"}, "no proper digest"),
        ({"run": ""}, "no proper digest"),
        ({"run": "0" * 16}, "does not know this run"),
        ({"round": -1}, "no round"),
        ({"round": 2**40}, "no round"),
        ({"payload": {}}, "'lr' must be|'mean' must be|'seed' must be"),
        ({"payload": {"lr": 0.1, "seed": 0, "mean": 1.0, "width": 3, "counted": [0]}}, "no round"),
        ({"payload": {"lr": 0.1, "seed": 0, "mean": 1.0, "width": 3, "counted": [0, "../x"]}}, "no message"),
        ({"payload": {"lr": 0.1, "seed": 0, "mean": 1.0, "width": 3, "counted": [7, "0" * 16]}}, "not here any more"),
        ({"payload": {"lr": 0.1, "seed": -1, "mean": 1.0, "width": 3}}, "'seed' must be"),
        ({"payload": {"lr": 0.1, "seed": 0, "mean": 0.0, "width": 3}}, "'mean' must be"),
        ({"payload": {"lr": 0.1, "seed": 0, "mean": 1.0, "width": 0}}, "'width' must be"),
        ({"payload": {"already": ["model"], "after": [0, "0" * 16]}}, "not asked here"),
        ({"tensors": {}}, "lacks 'model'"),
    ],
)
def test_letters_that_make_no_sense(changes, reason, file, tmp_path):
    config = configured("scaffold", file, **EVERYBODY)
    transport = InProcess(nodes(config, tmp_path / "there"))
    by_message(config, tmp_path, transport).advance()
    hello, train = (message for name, message, _ in transport.sent if name == WHO)
    node = client(file, tmp_path / "here", "scaffold")
    node.answer(hello)
    answer = node.answer(rewritten(train, **changes))
    assert re.search(reason, refusal(answer))
    assert opened(answer).payload["stranger"] is (changes.get("run") == "0" * 16)
    assert not (tmp_path / "elsewhere").exists()
    assert opened(node.answer(train)).kind == "answer"


def test_too_large_a_letter_is_not_looked_at(messages, file, tmp_path):
    node = client(file, tmp_path / "here")
    node.most = len(messages[0][0]) - 1
    assert "at most" in refusal(node.answer(messages[0][0]))


@pytest.mark.parametrize("spoilt", ["model", "scaffold/c"])
def test_numbers_that_are_not_finite_are_not_trained_from(spoilt, file, tmp_path):
    config = configured("scaffold", file, **EVERYBODY)
    transport = InProcess(nodes(config, tmp_path / "there"))
    by_message(config, tmp_path, transport).advance()
    hello, train = (message for name, message, _ in transport.sent if name == WHO)
    node = client(file, tmp_path / "here", "scaffold")
    node.answer(hello)
    tensors = opened(train).tensors
    assert "not finite" in refusal(node.answer(rewritten(train, tensors=tensors | {spoilt: tensors[spoilt] * np.nan})))


# --- data that do not fit


class Holds:
    """Samples in memory, all of them the client's."""

    def __init__(self, dataset):
        self.dataset = dataset

    def load(self):
        train, test = self.dataset.train, self.dataset.test
        return ClientData(self.dataset, Partition((np.arange(len(train)),), client_tests=(np.arange(len(test)),)), 0)


def dataset(shape=(3,), classes=3, labels=(), kind=np.float32, task="classification", tokens=(), y=None):
    rng = np.random.default_rng(0)
    y = np.arange(8) % classes if y is None else np.array(y)
    y = y if task == "classification" else rng.normal(size=len(y))
    split = Split(rng.integers(0, 3, (len(y), *shape)).astype(kind), y)
    return Dataset("own", split, split, classes, task, labels=labels, tokens=tokens)


def ready(held, home, method="fedavg", **facts):
    """What a client with these samples answers to a server whose samples are like `facts`."""
    settings = {"model": {"name": "mlp", "hidden": [4]}, "method": method, "rounds": 2}
    config = from_dict(settings | {"data": {"name": "clients", "shape": [3], "classes": 3} | facts})
    transport = InProcess({"a": lambda: Node(home, "a", Holds(held), device="cpu")})
    membership = world.Membership(home / "federation.json", ("a",))
    federation = world.assemble(config, transport, membership, world.WaitPolicy(pause=0.0), home, world.UserObjects())
    membership.open()
    federation.engine.channel.handshake_new_clients()
    if "a" in federation.engine.channel.rejected:
        return federation, federation.engine.channel.rejected["a"][0]
    membership.begin(32)
    return federation, ""


@pytest.mark.parametrize(
    ("held", "facts", "reason"),
    [
        (dataset(), {}, ""),
        (dataset(classes=2), {}, ""),
        (dataset(shape=(4,)), {}, "its samples have shape [4], and the federation's [3]"),
        (dataset(classes=4), {}, "it has class 3, and the federation's are 0 to 2"),
        (dataset(classes=1, task="regression"), {}, "its data are for regression"),
        (dataset(labels=("a", "b", "c")), {}, "its classes have names, and the federation's have none"),
        (dataset(labels=("a", "b", "x")), {"labels": ["a", "b", "c"]}, "it has a class that the federation has not"),
        (dataset(classes=2, labels=("a", "c")), {"labels": ["a", "b", "c"]}, ""),
        (dataset(kind=np.uint8), {"numbers": "floats", "mean": [0.0], "std": [1.0]}, "its samples are made of bytes"),
        (dataset(kind=np.int64, tokens=("", "x")), {}, "not made of the federation's words"),
    ],
)
def test_samples_are_of_the_federations_kind_or_refused(held, facts, reason, tmp_path, caplog):
    federation, said = ready(held, tmp_path, **facts)
    assert reason in said and bool(said) == bool(reason)
    assert "'x'" not in said and (not said or "it refused: " in said)
    if not reason:
        federation.advance()
    elif "'x'" in str(held.labels):
        assert any("there is a class 'x'" in record.getMessage() for record in caplog.records)  # on the client's side


def test_classes_go_by_name(tmp_path):
    """Whatever numbers a client's own files give them."""
    facts = Facts((3,), labels=("a", "b", "c"))
    fitted = facts.fitted(dataset(classes=2, labels=("c", "a"), y=[0, 0, 1, 0]))
    assert fitted.train.y.tolist() == [2, 2, 0, 2] and fitted.classes == 3 and fitted.labels == facts.labels


def test_the_federations_normalisation_takes_the_place_of_a_clients_own():
    own = replace(dataset(), mean=(5.0,), std=(2.0,))
    assert Facts((3,), 3, mean=(1.0,), std=(3.0,)).fitted(own).mean == (1.0,)
    assert Facts((3,), 3).fitted(own).mean == (5.0,)


def test_ranges_of_labels_are_the_federations(tmp_path):
    """A client of a regression counts its labels in ranges that everybody shares, not in its own."""
    held = dataset(classes=1, task="regression")
    edges = sorted([10.0 + k for k in range(9)])
    seen = []
    federation, said = ready(held, tmp_path, "disco(metric=l1)", task="regression", classes=1, ranges=edges)
    assert said == ""
    federation.engine.channel.transport.on_reply = lambda c, message, a: seen.append(opened(a)) or a
    federation.advance()
    all_in_one_of_ten = 9 * 0.1 + 0.9
    assert float(seen[0].tensors["disco.d"]) == pytest.approx(all_in_one_of_ten)


def test_files_that_cannot_be_read_are_the_clients_own_matter(tmp_path, caplog):
    config = configured("fedavg", tmp_path / "not-there.npz")
    node = Node(tmp_path / "home", "a", NamedData(config), device="cpu")
    other = configured("fedavg", samples(tmp_path))
    hello = by_message(other, tmp_path / "x").engine.channel.greeting(0).to_bytes()
    with caplog.at_level(logging.WARNING):
        said = refusal(node.answer(hello))
    assert said == "its data cannot be read; its own log says more"
    assert "not-there.npz" in caplog.records[-1].getMessage()


def test_strands_that_a_client_does_not_know_are_named(messages, file, tmp_path):
    hello = opened(messages[0][0])
    told = hello.payload | {"settings": hello.payload["settings"] | {"method": "calm"}}
    answer = client(file, tmp_path / "here").answer(replace(hello, payload=told).to_bytes())
    assert "no method is called 'calm'" in refusal(answer)


# --- what a client holds


def test_a_whole_archive_is_one_clients(file, tmp_path):
    held = NamedData(configured("fedavg", file)).load()
    assert len(held.partition) == 1 and len(held.partition.clients[0]) == sum(SIZES) and len(held.tests) == 20


def test_a_part_of_a_split_data_set(file):
    for part, size in enumerate(SIZES):
        held = NamedData(configured("fedavg", file), part).load()
        assert len(held.partition.clients[held.client]) == size and len(held.tests) == TESTS[part]
    digits = NamedData.of({"data": {"name": "digits"}, "partition": {"name": "iid", "clients": 4}, "seed": 3}, 1).load()
    assert len(digits.tests) == 0 and len(digits.partition) == 4


def test_wrong_parts_and_settings():
    settings = {"data": {"name": "digits"}, "partition": {"name": "iid", "clients": 4}}
    with pytest.raises(UserError, match="clients 0 to 3, and no client 4"):
        NamedData.of(settings, 4).load()
    with pytest.raises(UserError, match="no setting of a client is called 'rounds'"):
        NamedData.of(settings | {"rounds": 3})


def test_hello_tells_how_much_there_is_and_no_more(messages):
    answer = opened(messages[0][1])
    assert answer.payload == {"to": digest(messages[0][0]), "samples": SIZES[PART], "tests": TESTS[PART]}


def test_a_letter_to_evaluate_without_tests_is_refused(tmp_path):
    held = dataset()

    class Untested(Holds):
        def load(self):
            return ClientData(held, Partition((np.arange(8),)), 0)

    federation, said = ready(held, tmp_path)
    hello = federation.engine.channel.greeting(0)
    node = Node(tmp_path / "other", "a", Untested(held), device="cpu")
    assert opened(node.answer(hello.to_bytes())).payload["tests"] == 0 and said == ""
    question = Message("evaluate", hello.run, 1, {}, hello.tensors)
    assert "no test samples" in refusal(node.answer(question.to_bytes()))


def test_no_message_that_lacks_proof_of_the_servers_deletes_anything(file, tmp_path):
    """A message about a later round that names no answer, or one that was never given, leaves the states alone."""
    config = configured("scaffold", file, sampling={"clients": 0}, rounds=12)
    federation = by_message(config, tmp_path)
    for _ in range(3):
        federation.advance()
    home = ClientHome(tmp_path / "homes" / WHO, federation.membership.run)
    before = sorted(home.folder.iterdir())
    home.tidy(11, None)
    home.tidy(11, MessageRef(10, "0" * 16))
    assert sorted(home.folder.iterdir()) == before


@pytest.mark.parametrize("round", [12, 2147483646])
def test_a_round_that_the_run_does_not_have_is_refused(round, file, tmp_path):
    config = configured("scaffold", file, sampling={"clients": 0}, rounds=12)
    federation = by_message(config, tmp_path)
    federation.advance()
    payload = {"lr": 0.1, "seed": 0, "mean": 1.0, "width": 3, "counted": None, "already": [], "after": None}
    tensors = {"model": federation.server.w, "buffers": federation.server.buffers}
    asked = Message("train", federation.membership.run, round, payload, tensors).to_bytes()
    answer = read(nodes(config, tmp_path / "homes")[WHO]().answer(asked), 1 << 30)
    assert answer.kind == "refusal" and f"asks for round {round + 1} of a run of 12" in answer.payload["reason"]


def test_no_file_is_opened_that_a_server_names(file, tmp_path):
    config = configured("fedavg", file)
    transport = InProcess(nodes(config, tmp_path / "homes"))
    by_message(config, tmp_path, transport)
    hello = next(m for name, m, _ in transport.sent if name == WHO)
    settings = read(hello, 1 << 30).payload["settings"]
    for option in ("vectors", "weights"):
        changed = {"settings": settings | {"model": settings["model"] | {option: "/etc/passwd"}}}
        asked = world.rewritten(hello, payload=dict(read(hello, 1 << 30).payload) | changed)
        answer = read(transport.clients[WHO]().answer(asked), 1 << 30)
        assert f"model.{option} names a file of this machine" in answer.payload["reason"]
