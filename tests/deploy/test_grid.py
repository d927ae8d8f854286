"""Messages over a Grid that does not always do as it should."""

import logging
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedbraid[flower]'")

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import save

from fedbraid.deploy import flower
from fedbraid.deploy.flower import GridTransport, packed, unpacked

KEYS = {b"key of a": "a", b"key of b": "b"}
GONE = Error(ErrorCode.NODE_UNAVAILABLE, "no heartbeat")


class FakeGrid:
    """Nodes that answer with what `answer(node, message)` gives: a reply's content, an error, or None for never."""

    def __init__(self, answer, **nodes):
        self.answer, self.sent = answer, {}
        self.nodes = [
            SimpleNamespace(node_id=number, public_key=f"key of {name}".encode(), last_activated_at="1")
            for number, name in enumerate(nodes or ["a", "b"], 1)
        ]

    def get_nodes(self):
        return list(self.nodes)

    def push_messages(self, messages):
        (message,) = messages
        number = f"message {len(self.sent)}"
        message.metadata.__dict__["_message_id"] = number
        self.sent[number] = message
        return [number]

    def pull_messages(self, numbers):
        replies = []
        for number in numbers:
            message = self.sent[number]
            content = self.answer(message.metadata.dst_node_id, message)
            if content is not None:
                replies.append(Message(content, reply_to=message))
        return replies


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(flower, "POLL", 0.01)
    monkeypatch.setattr(flower, "LOOK", 0.05)
    monkeypatch.setattr(flower, "BACK", 0.4)
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


def echo(node, message):
    return packed(b"%d: " % node + unpacked(message.content))


MESSAGE_TYPE = {"a": b"for a", "b": b"for b"}


@pytest.mark.parametrize("message", [b"x", bytes(8), bytes(9), b"\xff" * 100, save({"w": torch.ones(3)}, {"a": "b"})])
def test_a_letter_is_unpacked_as_it_was_packed(message):
    assert unpacked(packed(message)) == message


def test_tensors_that_all_clients_get_are_the_same_pieces():
    """Flower keeps what has the same contents once, so headers, which differ, must not be in the same pieces."""
    messages = [save({"w": torch.ones(3)}, {"client": name}) for name in ("a", "another")]
    pieces = [{array.object_id for array in packed(message)["letter"].values()} for message in messages]
    assert len(pieces[0] & pieces[1]) == 1


def test_letters_go_to_the_nodes_with_the_clients_keys():
    transport = GridTransport(FakeGrid(echo), KEYS, 100)
    assert transport.present() == ["a", "b"]
    assert transport.exchange(MESSAGE_TYPE, 5) == {"a": b"1: for a", "b": b"2: for b"}
    assert transport.exchange({"b": b"x", "c": b"y"}, 5) == {"b": b"2: x"}
    assert transport.exchange({"c": b"y"}, 5) == {}


def test_a_node_whose_key_is_not_in_the_roster_is_nobody():
    transport = GridTransport(FakeGrid(echo), {b"key of b": "b"}, 100)
    assert transport.present() == ["b"]
    assert transport.exchange(MESSAGE_TYPE, 5) == {"b": b"2: for b"}


def test_who_does_not_answer_in_time_is_missing():
    began = time.monotonic()
    transport = GridTransport(FakeGrid(lambda node, message: echo(node, message) if node == 1 else None), KEYS, 100)
    assert transport.exchange(MESSAGE_TYPE, 0.5) == {"a": b"1: for a"}
    assert 0.4 < time.monotonic() - began < 2


def test_an_answer_that_never_comes_to_an_end_holds_up_nobody():
    """Flower waits for the rest of an answer for minutes; a client may stop in the middle."""
    transport = GridTransport(FakeGrid(lambda node, m: time.sleep(30) if node == 1 else echo(node, m)), KEYS, 100)
    began = time.monotonic()
    assert transport.exchange(MESSAGE_TYPE, 0.5) == {"b": b"2: for b"}
    assert time.monotonic() - began < 2


def letter_of(**parts):
    return RecordDict({"letter": ArrayRecord({key: Array("uint8", (1,), "bytes", b"x") for key in parts})})


@pytest.mark.parametrize(
    "answer, why",
    [
        (RecordDict(), "a: refused: its answer is no message"),
        (RecordDict({"letter": ConfigRecord({"letter": b"x"})}), "a: refused: its answer is no message"),
        (letter_of(one="x"), "a: refused: its answer is no message"),
        (packed(bytes(101)), "a: refused: its answer has 101 bytes, more than 100"),
        (Error(2, "it failed\nbadly"), "a: no answer: it failed badly"),
    ],
    ids=["nothing", "other", "parts", "large", "error"],
)
def test_what_is_no_letter_is_refused_with_a_line_and_the_rest_go_on(answer, why, caplog):
    transport = GridTransport(FakeGrid(lambda node, m: answer if node == 1 else echo(node, m)), KEYS, 100)
    with caplog.at_level(logging.INFO, "fedbraid"):
        assert transport.exchange(MESSAGE_TYPE, 5) == {"b": b"2: for b"}
    assert [line for line in caplog.messages if not line.endswith("connected")] == [why]


def test_a_grid_that_fails_for_one_client_does_not_fail_for_all(caplog):
    def broken(node, message):
        if node == 1:
            raise RuntimeError("broken pipe")
        return echo(node, message)

    with caplog.at_level(logging.INFO, "fedbraid"):
        assert GridTransport(FakeGrid(broken), KEYS, 100).exchange(MESSAGE_TYPE, 5) == {"b": b"2: for b"}
    assert [line for line in caplog.messages if not line.endswith("connected")] == ["a: no answer: broken pipe"]


def test_a_letter_that_flower_does_not_take_is_told_of(caplog):
    grid = FakeGrid(echo)
    grid.push_messages = lambda messages: [""]
    with caplog.at_level(logging.INFO, "fedbraid"):
        assert GridTransport(grid, KEYS, 100).exchange({"a": b"x"}, 5) == {}
    assert "would not take its message of 1 bytes" in caplog.text


def test_a_client_that_was_started_again_gets_its_letter_again():
    grid = FakeGrid(lambda node, message: echo(node, message) if grid.sent["message 0"] is not message else None)
    transport = GridTransport(grid, KEYS, 100)

    def started_again():
        grid.nodes[0].last_activated_at = "2"
        return list(grid.nodes)

    looks = iter([lambda: list(grid.nodes)])
    grid.get_nodes = lambda: next(looks, started_again)()
    assert transport.exchange({"a": b"x"}, 5) == {"a": b"1: x"}
    assert len(grid.sent) == 2


@pytest.mark.parametrize("returns", [True, False])
def test_a_client_that_is_gone_has_a_while_to_come_back(returns, caplog):
    began = time.monotonic()

    def answer(node, message):
        if node == 7 and time.monotonic() - began < 1:
            return None  # once it is back it has all the time there is
        return GONE if node == 1 else echo(node, message)

    grid = FakeGrid(answer)
    transport = GridTransport(grid, KEYS, 100)
    looked = []

    def look():
        looked.append(1)
        gone = SimpleNamespace(node_id=7, public_key=b"key of a", last_activated_at="2")
        return grid.nodes if len(looked) == 1 else [gone, grid.nodes[1]] if returns else grid.nodes[1:]

    grid.get_nodes = look
    with caplog.at_level(logging.INFO, "fedbraid"):
        got = transport.exchange(MESSAGE_TYPE, 20)
    assert got == ({"a": b"7: for a", "b": b"2: for b"} if returns else {"b": b"2: for b"})
    assert time.monotonic() - began < 5
    assert len([record for record in caplog.records if "a is gone" in record.getMessage()]) == 1


# --- without keys


def call_themselves(names):
    def answer(node, message):
        if message.metadata.message_type == "query.name":
            return RecordDict({"node": ConfigRecord({"name": names[node]})})
        return echo(node, message)

    return answer


def settled(transport):
    for _ in range(3):
        names = transport.present()
    return names


def test_without_keys_clients_are_asked_once_and_believed():
    grid = FakeGrid(call_themselves({1: "x", 2: "y"}))
    transport = GridTransport(grid, None, 100)
    assert settled(transport) == ["x", "y"]
    assert len(grid.sent) == 2
    assert transport.exchange({"x": b"hello"}, 5) == {"x": b"1: hello"}


def test_of_two_with_the_same_name_the_newer_counts():
    grid = FakeGrid(call_themselves({1: "x", 2: "x"}))
    transport = GridTransport(grid, None, 100)
    grid.nodes[0].last_activated_at = "2"
    assert settled(transport) == ["x"]
    assert transport.exchange({"x": b"hello"}, 5) == {"x": b"1: hello"}


@pytest.mark.parametrize("name", [5, b"x", "", "two words", "x" * 100, "line\nbreak"])
def test_a_name_that_is_none_is_not_believed(name):
    grid = FakeGrid(call_themselves({1: name, 2: "y"}))
    assert settled(GridTransport(grid, None, 100)) == ["y"]
