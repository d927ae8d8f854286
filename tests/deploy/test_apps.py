"""The ServerApp and the ClientApp by themselves: what they make of their settings, and what they say of failures."""

import json
import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedbraid[flower]'")

from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from stand_ins import Done

from fedbraid.deploy import flower
from fedbraid.deploy.flower import packed, unpacked
from fedbraid.deploy.process_settings import NodeSettings, ServerSettings
from fedbraid.errors import UserError

log = logging.getLogger("fedbraid")


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setattr(flower, "end_with_parent", lambda: None)
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


def conducting(tmp_path, monkeypatch, conduct, **given):
    """How a ServerApp with this conductor ends, and its log."""
    monkeypatch.setattr(flower, "named", lambda reference: conduct)
    settings = ServerSettings(config={"rounds": 2}, roster=["a"], out=str(tmp_path), conduct="x:y", **given)
    settings.folder.mkdir()
    file = settings.write(settings.folder / "server.json")
    flower.serve(SimpleNamespace(), SimpleNamespace(run_config={"settings": str(file)}))
    return json.loads(settings.done.read_text())["error"], settings.log.read_text(), settings


def test_a_server_conducts_as_it_is_told(tmp_path, monkeypatch):
    told = {}

    def conduct(config, transport, roster, **rest):
        told.update(rest, config=config, transport=transport, roster=roster)
        line = {"round": 2, "accuracy": 0.5, "loss": 1.0, "seconds": 1.0, "backward_samples": 10}
        rest["on_round"](line, config)
        log.info("hospital-a is lost")
        return Done()

    names = {"key": "a"}
    error, lines, _ = conducting(
        tmp_path, monkeypatch, conduct, names=names, resume=True, min_clients=1, seconds=9, most=77
    )
    assert error is None
    assert told["config"].rounds == 2 and told["roster"] == ["a"] and told["out"] == tmp_path
    assert (told["resume"], told["min_clients"], told["seconds"]) == (True, 1, 9)
    assert told["transport"].names == {b"key": "a"} and told["transport"].most == 77
    first, second = lines.splitlines()
    assert first.endswith("fedavg seed 0: round 2/2  accuracy 50.00 %  10 samples/s")
    assert second.endswith("hospital-a is lost")
    assert (tmp_path / "report.html").exists()


def test_a_mistake_of_the_user_is_its_sentence(tmp_path, monkeypatch):
    def conduct(*_, **__):
        raise UserError("nobody came")

    error, lines, _ = conducting(tmp_path, monkeypatch, conduct)
    assert error == "nobody came" and lines == ""


def test_another_failure_is_told_in_the_log(tmp_path, monkeypatch):
    def conduct(*_, **__):
        raise ZeroDivisionError("by\nzero")

    error, lines, _ = conducting(tmp_path, monkeypatch, conduct)
    assert error == "ZeroDivisionError: by zero"
    assert "Traceback" in lines


def test_an_interrupted_server_does_not_say_that_it_is_done(tmp_path, monkeypatch):
    def conduct(*_, **__):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conducting(tmp_path, monkeypatch, conduct)
    error = json.loads((tmp_path / "flower" / "done.json").read_text())["error"]
    assert error == "the server's process ended in the middle"


def answered(tmp_path, message, name="hospital-a"):
    """A ClientApp's reply, and its log."""
    settings = NodeSettings(home=str(tmp_path), name=name, node="stand_ins:EchoNode")
    settings.folder.mkdir(exist_ok=True)
    file = settings.write(settings.folder / "node.json")
    message = Message(message, 1, "query.letter")
    message.metadata.__dict__["_message_id"] = "m"
    context = SimpleNamespace(node_config={"fedbraid": str(file)})
    before = logging.getLogger("fedbraid").handlers[:]
    reply = flower.client(message, context)
    assert logging.getLogger("fedbraid").handlers == before
    return reply, settings.log.read_text()


def test_a_client_answers_with_what_its_node_writes(tmp_path):
    for turn in (1, 2):  # each in a process of its own, so only what is on disk lasts
        reply, lines = answered(tmp_path, packed(b"hello"))
        assert unpacked(reply.content) == b"hospital-a %d hello" % turn
        assert len(lines.splitlines()) == 2 * turn
    assert "received 5 bytes, answered in 0.0 s, sent 18 bytes" in lines


@pytest.mark.parametrize("message", [packed(b"fail"), RecordDict()], ids=["failing", "no message"])
def test_what_goes_wrong_at_a_client_is_told_in_its_own_log(tmp_path, message):
    reply, lines = answered(tmp_path, message)
    assert reply.has_error() and reply.error.reason == "it failed; its own log says why"
    assert "Traceback" in lines


def test_a_client_says_its_name(tmp_path):
    settings = NodeSettings(home=str(tmp_path), name="hospital-a")
    file = settings.write(settings.folder / "node.json")
    message = Message(RecordDict(), 1, "query.name")
    message.metadata.__dict__["_message_id"] = "m"
    reply = flower.client(message, SimpleNamespace(node_config={"fedbraid": str(file)}))
    assert reply.content.config_records["node"]["name"] == "hospital-a"


def test_settings_are_read_as_they_were_written_and_by_their_owner_alone(tmp_path):
    settings = NodeSettings(home="h", name="n", holds={"data": {"name": "npz"}}, part=3)
    file = settings.write(tmp_path / "s.json")
    assert NodeSettings.read(file) == settings
    assert file.stat().st_mode & 0o777 == 0o600
