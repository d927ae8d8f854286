"""What happens to a federation of real Flower processes when parts of it are killed, or are not what they seem."""

import json
import os
import signal
import ssl
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedbraid[flower]'")

from parties import Federation, wait

from fedbraid.deploy.flower_programs import FlowerControl
from fedbraid.deploy.keys import make_keys

pytestmark = pytest.mark.slow

NAMES = "hospital-a", "hospital-b"


@pytest.fixture
def federation(request, tmp_path):
    federation = Federation(tmp_path, NAMES, **getattr(request, "param", {}))
    yield federation
    federation.family.end()


def count(federation, name):
    """The messages that a client has answered, which it keeps on disk."""
    return int((federation.family.folder / name / "count").read_text())


def test_a_supernode_that_is_killed_gets_its_letter_again(federation):
    """Another one has the same key and so the same name; Flower lets it in when it has noticed."""
    federation.talk.ask({"hospital-a": "slow 3", "hospital-b": "hello"}, within=120)
    wait((federation.family.folder / "hospital-a" / "slow").exists, 20, "the message")
    (pid,) = federation.processes("supernode", "/keys/hospital-a/")
    os.kill(pid, signal.SIGKILL)
    assert set(federation.talk.got(120)) == set(NAMES), federation.log()
    assert count(federation, "hospital-a") == 2 and count(federation, "hospital-b") == 1
    federation.clients["hospital-a"].wait_for("has joined", times=2)


def test_a_client_that_is_killed_leaves_nothing_behind_and_comes_back(federation):
    federation.talk.ask({"hospital-a": "slow 3", "hospital-b": "hello"}, within=120)
    wait((federation.family.folder / "hospital-a" / "slow").exists, 20, "the message")
    federation.clients["hospital-a"].signal(signal.SIGKILL)
    wait(lambda: not federation.processes("hospital-a"), 10, "the end of hospital-a's processes")
    again = federation.join("hospital-a")
    assert set(federation.talk.got(120)) == set(NAMES), federation.log()
    assert count(federation, "hospital-a") == 2
    assert len(again.said("has joined")) == 1


def test_a_client_that_dies_while_it_answers_is_missing_and_the_rest_go_on(federation):
    assert set(federation.talk.exchange({"hospital-a": "die", "hospital-b": "hello"}, within=15)) == {"hospital-b"}
    assert set(federation.talk.exchange(dict.fromkeys(NAMES, "next"), within=120)) == set(NAMES)


def test_a_client_that_stays_away_does_not_hold_up_a_round_until_its_time_is_over(federation):
    """Flower tells after a while that there are no more signs of life."""
    federation.clients["hospital-a"].signal(signal.SIGKILL)
    assert set(federation.talk.exchange(dict.fromkeys(NAMES, "hello"), within=600)) == {"hospital-b"}
    assert len(federation.server.wait_for("hospital-a is gone", 5)) == 1


@pytest.mark.parametrize("federation", [{"secure": True}, {"secure": False}], indirect=True, ids=["tls", "insecure"])
def test_a_server_that_is_killed_leaves_nothing_behind_and_goes_on_with_the_same_clients(federation):
    assert set(federation.talk.exchange(dict.fromkeys(NAMES, "one"))) == set(NAMES)
    federation.talk.ask(dict.fromkeys(NAMES, "slow 2"))
    wait((federation.family.folder / "hospital-a" / "slow").exists, 20, "the message")
    federation.server.signal(signal.SIGKILL)
    wait(lambda: not federation.processes("/out/") and not federation.processes("flwr-serverapp"), 8, "its processes")
    asked = federation.talk.number
    federation.serve(resume=True)
    federation.talk.number = asked
    assert set(federation.talk.got(120)) == set(NAMES)
    assert set(federation.talk.exchange(dict.fromkeys(NAMES, "three"))) == set(NAMES)
    for client in federation.clients.values():
        client.wait_for("has joined", times=2)


def test_a_superlink_that_dies_ends_the_server_with_a_word(federation):
    (pid,) = federation.processes(" superlink ")
    os.kill(pid, signal.SIGKILL)
    (line,) = federation.server.wait_for("error: Flower's superlink ended", 20)
    assert "--resume goes on" in line
    federation.server.wait(20)
    assert not federation.processes("/out/")


@pytest.mark.parametrize("federation", [{"secure": False}], indirect=True, ids=["insecure"])
def test_without_keys_clients_are_believed_and_the_newer_of_a_name_counts(federation):
    assert set(federation.talk.exchange(dict.fromkeys(NAMES, "hello"))) == set(NAMES)
    assert len(federation.server.said("connected (unauthenticated)")) == 2
    other = federation.family.client("hospital-a", federation.address, home=str(federation.family.folder / "other"))
    federation.server.wait_for("hospital-a connected (unauthenticated)", 60, times=2)
    got = federation.talk.exchange(dict.fromkeys(NAMES, "hello"))
    assert got["hospital-a"] == "hospital-a 1 hello" and got["hospital-b"] == "hospital-b 2 hello"
    assert other.said("has joined")


def test_a_home_has_one_client(federation):
    twice = federation.join("hospital-a")
    assert "is in use by another process" in twice.wait_for("error:", 20)[0]
    twice.wait(10)


def test_a_key_of_another_federation_and_a_wrong_certificate_are_told_to_the_client(federation, tmp_path):
    make_keys(tmp_path / "other", [], ["hospital-a"])
    unknown_run = federation.family.client("x", federation.address, tmp_path / "other" / "hospital-a")
    assert "is not the server of these keys" in unknown_run.wait_for("error:", 20)[0]
    (tmp_path / "other" / "hospital-a" / "ca.pem").write_bytes((federation.keys / "server" / "ca.pem").read_bytes())
    unknown_run = federation.family.client("x", federation.address, tmp_path / "other" / "hospital-a")
    assert "does not know this client's key" in unknown_run.wait_for("error:", 20)[0]
    plain = federation.family.client("x", federation.address)
    assert "wants TLS" in plain.wait_for("error:", 20)[0]
    federation.server.wait_for("came with a key that is not in the roster", 5)
    federation.server.wait_for("does not trust this server's certificate", 5)
    federation.server.wait_for("it was not encrypted", 5)
    assert set(federation.talk.exchange(dict.fromkeys(NAMES, "hello"))) == set(NAMES)


FOREIGN = """
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()

@client.query("letter")
def spy(message, context):
    Path({digest!r}).touch()
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid, context):
    Path({there!r}).touch()
    messages = [Message(RecordDict(), node, "query.letter") for node in grid.get_node_ids()]
    replies = list(grid.send_and_receive(messages, timeout=30))
    Path({replies!r}).write_text(str(len(replies)))
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning:pathspec", "ignore:GitWildMatchPattern:DeprecationWarning")
def test_clients_run_no_code_that_comes_over_the_network(federation, tmp_path, monkeypatch):
    """A server's operator starts a run of an app whose ClientApp is not ours: clients answer with their own."""
    digest, there, replies = (tmp_path / name for name in ("mark", "there", "replies"))
    settings = json.loads((federation.talk.out / "flower" / "guard.json").read_text())
    control = FlowerControl(str(federation.address), federation.keys / "server" / "ca.pem", settings["token"])
    code = FOREIGN.format(digest=str(digest), there=str(there), replies=str(replies))
    project = (
        '[project]\nname = "foreign"\nversion = "1.0.0"\ndescription = "x"\nlicense = "x"\ndependencies = []\n'
        '[tool.flwr.app]\npublisher = "x"\n[tool.flwr.app.components]\n'
        'serverapp = "foreign:server"\nclientapp = "foreign:client"\n[tool.flwr.app.config]\n'
    )
    from flwr.cli import build

    real = build.build_fab_from_files
    files = {"pyproject.toml": project.encode(), "foreign.py": code.encode()}
    monkeypatch.setattr(build, "build_fab_from_files", lambda _: real(files))
    control.start_run(tmp_path)
    control.close()
    wait(there.exists, 60, "the foreign ServerApp")
    wait(replies.exists, 60, "the replies")
    assert replies.read_text() == "2"
    assert not digest.exists()
    assert set(federation.talk.exchange(dict.fromkeys(NAMES, "hello"))) == set(NAMES)


def test_clients_survive_a_foreign_certificate_on_the_port(federation, tmp_path):
    """For a while somebody else's server answers on the address; then the right one is back."""
    assert set(federation.talk.exchange(dict.fromkeys(NAMES, "before"))) == set(NAMES)
    federation.server.signal(signal.SIGTERM)
    federation.server.wait(30)
    make_keys(tmp_path / "foreign", [], ["x"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(
        tmp_path / "foreign" / "server" / "server.pem", tmp_path / "foreign" / "server" / "server.key"
    )
    foreign = HTTPServer((federation.address.host, federation.address.port), BaseHTTPRequestHandler)
    foreign.socket = context.wrap_socket(foreign.socket, server_side=True)
    thread = Thread(target=foreign.serve_forever)
    thread.start()
    time.sleep(15)
    foreign.shutdown()
    foreign.server_close()
    thread.join()
    federation.serve(resume=True)
    federation.talk.wait_for(*NAMES, seconds=120)
    assert set(federation.talk.exchange(dict.fromkeys(NAMES, "after"))) == set(NAMES)
