"""Messages between real Flower processes on the loopback, over TLS and with keys. Stand-ins write and answer them.

One federation serves most tests here, because Flower takes its time to start.
"""

import http.client
import json
import re
import signal
import socket
import ssl
from base64 import b64encode
from datetime import UTC, datetime
from hashlib import sha256

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedbraid[flower]'")

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from parties import Federation

from fedbraid.deploy.address import Address, check_server
from fedbraid.deploy.keys import make_keys
from fedbraid.deploy.processes import free_port
from fedbraid.errors import UserError

NAMES = "hospital-a", "hospital-b"
MOST = 3_000_000

pytestmark = pytest.mark.slow
"""Starting Flower takes longer than all tests here. By default `test_flower_parity.py` starts it, once, for everything
from end to end; `test_guard.py` and `test_grid.py` have the door and the ways of messages in this process."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    federation = Federation(tmp_path_factory.mktemp("federation"), NAMES, most=MOST)
    yield federation
    federation.family.end()


def test_letters_reach_the_clients_they_are_for_and_answers_come_back(federation):
    for turn in ("one", "two"):
        got = federation.talk.exchange({"hospital-a": f"{turn} for a", "hospital-b": f"{turn} for b"})
        assert {name: text.split(" ", 2)[0] for name, text in got.items()} == {name: name for name in NAMES}
        assert got["hospital-a"].endswith(f"{turn} for a") and got["hospital-b"].endswith(f"{turn} for b")


def test_whoever_is_not_there_is_missing(federation):
    assert set(federation.talk.exchange({"hospital-a": "hello", "hospital-z": "hello"})) == {"hospital-a"}


def test_a_letter_of_many_pieces_arrives_whole(federation):
    """Flower cuts it; the answer has its length and what its SHA-256 begins with."""
    message = "".join(chr(97 + place * place % 23) for place in range(6_000_000))
    (answer,) = federation.talk.exchange({"hospital-a": message}).values()
    assert answer.split()[2:] == ["6000000", sha256(message.encode()).hexdigest()]


def fleet(federation, path, body=b"", by=None, size=None):
    """The status of a request to Flower's interface for clients, signed by a client's key."""
    time, headers = datetime.now(UTC).isoformat(), {"content-type": "application/octet-stream"}
    if by:
        key = load_ssh_private_key((federation.keys / by / "node.key").read_bytes(), None)
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        signature = key.sign(time.encode(), ec.ECDSA(hashes.SHA256()))
        headers |= {"flwr-public-key": b64encode(public).decode(), "flwr-timestamp": time}
        headers |= {"flwr-signature": b64encode(signature).decode()}
    context = ssl.create_default_context(cafile=str(federation.keys / "server" / "ca.pem"))
    connection = http.client.HTTPSConnection("127.0.0.1", federation.address.port, context=context, timeout=10)
    connection.putrequest("POST", f"/v1/fleet/{path}")
    for name, value in (headers | {"content-length": str(len(body) if size is None else size)}).items():
        connection.putheader(name, value)
    connection.endheaders(body)
    try:
        return connection.getresponse().status
    finally:
        connection.close()


def node_of(federation, name):
    """Flower's number of a client."""
    log = (federation.family.folder / name / "flower" / "supernode.log").read_text()
    return int(re.findall(r"SuperNode ID: (\d+)", log)[-1])


def test_a_client_cannot_pass_for_the_server_or_fill_its_memory(federation):
    """What an insider tried: messages to another client, in the server's name or its own, and unasked ones."""
    asked = federation.talk.exchange(dict.fromkeys(NAMES, "before"))
    a, b = (node_of(federation, name) for name in NAMES)
    for about, reason in (
        (Metadata(src_node_id=1, dst_node_id=a), "in another client's name"),
        (Metadata(src_node_id=b, dst_node_id=a), "to another client"),
        (Metadata(src_node_id=b, dst_node_id=1), "that nobody asked for"),
        (Metadata(src_node_id=b, dst_node_id=1, reply_to_message_id="0" * 64), "that nobody asked for"),
    ):
        push = PushMessagesRequest(node=Node(node_id=b), messages_list=[Message(metadata=about)])
        assert fleet(federation, "push-messages", push.SerializeToString(), by="hospital-b") == 403
        assert federation.server.wait_for(f"refused: hospital-b at 127.0.0.1 sent a message {reason}", 5)
    assert set(asked) == set(federation.talk.exchange(dict.fromkeys(NAMES, "after"))) == set(NAMES)


def test_every_decision_is_in_the_audit_log(federation):
    """The same refusal three times is one line of the log and three of the audit log."""
    for _ in range(3):
        assert fleet(federation, "push-messages", size=60_000_000, by="hospital-b") == 413
    lines = [json.loads(line) for line in (federation.talk.out / "flower" / "audit.jsonl").read_text().splitlines()]
    seen = [(line["client"], line["decision"]) for line in lines]
    assert {("hospital-a", "connected"), ("hospital-b", "connected")} <= set(seen)
    assert sum("60,000,000 bytes" in line["reason"] for line in lines if line["decision"] == "refused") >= 3
    federation.server.wait_for("hospital-a connected", 5)


def test_the_servers_folder_is_its_owners_alone(federation):
    assert federation.talk.out.stat().st_mode & 0o777 == 0o700


def test_who_has_not_signed_is_answered_before_the_body_is_read(federation):
    """The request says that it has 60 MB, and sends none."""
    assert fleet(federation, "push-object", size=60_000_000) == 401
    assert fleet(federation, "push-messages", size=60_000_000, by="hospital-b") == 413


def test_an_answer_that_is_too_large_is_refused_with_a_line_and_the_rest_go_on(federation):
    got = federation.talk.exchange({"hospital-a": "big 9000000", "hospital-b": "hello"}, within=6)
    assert set(got) == {"hospital-b"}
    said = federation.server.wait_for("sent an answer of more than", 5)
    assert len(said) == 1 and said[0].startswith("refused: hospital-a at 127.0.0.1")
    assert set(federation.talk.exchange(dict.fromkeys(NAMES, "next"))) == set(NAMES)


def test_a_client_that_fails_says_nothing_of_its_insides(federation):
    before = len(federation.server.said("hospital-b: no answer"))
    assert set(federation.talk.exchange({"hospital-a": "hello", "hospital-b": "fail"})) == {"hospital-a"}
    (line,) = federation.server.wait_for("hospital-b: no answer", 5)[before:]
    assert line.endswith("it failed; its own log says why")
    assert "a secret of this machine" not in federation.log()
    assert "a secret of this machine" in (federation.family.folder / "hospital-b" / "flower" / "node.log").read_text()


def test_a_stranger_gets_no_further_than_the_door(federation):
    """Flower alone would let anyone who reaches the port start runs, which is to run code, and membership keys."""
    trusting = ssl.create_default_context(cafile=str(federation.keys / "server" / "ca.pem"))
    for path in ("/v1/control/start-run", "/v1/control/register-node", "/docs"):
        connection = http.client.HTTPSConnection("127.0.0.1", federation.address.port, context=trusting, timeout=5)
        connection.request("POST", path, body=b"", headers={"content-type": "application/x-protobuf"})
        assert connection.getresponse().status == 403
        connection.close()
        assert len(federation.server.wait_for(f"asked for '{path}'", 5)) == 1


def test_a_connection_without_tls_is_refused_with_a_line(federation):
    with socket.create_connection(("127.0.0.1", federation.address.port), timeout=5) as plain:
        plain.sendall(b"POST /v1/fleet/activate-node HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP")
    assert len(federation.server.wait_for("it was not encrypted", 5)) == 1


def test_an_unknown_key_is_refused_with_a_line(federation, tmp_path):
    """A unknown_run's SuperNode signs with a key of its own, and with one of the roster that it has only seen."""
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
    from httpx import HTTPStatusError

    from fedbraid.deploy.keys import read_roster

    private, public = generate_key_pairs()
    member = read_roster(federation.keys / "server" / "roster")[0]
    with FleetHttpClient.from_server_address(
        str(federation.address),
        False,
        (federation.keys / "server" / "ca.pem").read_bytes(),
        [RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(private, public)],
    ) as unknown_run:
        for key in (public_key_to_bytes(public), member.key):
            with pytest.raises(HTTPStatusError):
                unknown_run.ActivateNode(ActivateNodeRequest(public_key=key, heartbeat_interval=30))
    assert len(federation.server.wait_for("came with a key that is not in the roster", 5)) == 1


def test_a_client_looks_at_the_server_before_it_joins(federation, tmp_path):
    make_keys(tmp_path / "other", [], [])
    assert check_server(federation.address, federation.keys / "server" / "ca.pem")
    with pytest.raises(UserError, match="not the server of these keys"):
        check_server(federation.address, tmp_path / "other" / "server" / "ca.pem")
    with pytest.raises(UserError, match="wants TLS"):
        check_server(federation.address, None)
    with pytest.raises(UserError, match="does not know this client's key"):
        check_server(federation.address, federation.keys / "server" / "ca.pem", b"another key")
    assert not check_server(Address("127.0.0.1", free_port()), None)


def test_at_the_end_nobody_is_left(federation):
    federation.talk.finish()
    federation.server.wait_for("finished", 20)
    assert json.loads((federation.talk.out / "flower" / "done.json").read_text()) == {"error": None}
    for client in federation.clients.values():
        client.signal(signal.SIGINT)
        client.signal(signal.SIGINT)  # impatience is no reason to leave anything behind
    for client in federation.clients.values():
        client.wait(20)
    federation.family.ended(5)
