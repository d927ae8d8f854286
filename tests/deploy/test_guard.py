"""What stands before the SuperLink: who gets how far, and what is told of those who do not."""

import asyncio
import ssl
from base64 import b64encode
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node

from fedbraid.deploy.flower_fleet import REPLIES, FleetRules
from fedbraid.deploy.guard import PIECE, SMALL, Guard, loud_about_tls, once_a_minute

TOKEN, MOST = "secret", 10_000_000
PRIVATE = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("hospital-a", "hospital-b", "another")}
PEM = {
    name: key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    for name, key in PRIVATE.items()
}
NODES = {"hospital-a": 11, "hospital-b": 22}


class Behind:
    """An application that answers as told and notes what it was asked."""

    def __init__(self, status=200):
        self.status, self.asked, self.body = status, [], b""

    async def __call__(self, scope, receive, send):
        self.asked.append(scope["path"])
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": self.body})


class World:
    def __init__(self, status=200):
        self.behind, self.lines, self.read = Behind(status), [], 0
        names = {PEM[name]: name for name in ("hospital-a", "hospital-b")}
        self.guard = Guard(self.behind, TOKEN, MOST, names, self.lines.append, FleetRules())

    def ask(
        self, path, peer="10.0.0.7", size=None, token=None, key="hospital-a", body=b"", late=0.0, by=None, **headers
    ):
        """The status of an answer to a request, signed by the key of `by`."""
        time = (datetime.now(UTC) - timedelta(seconds=late)).isoformat()
        given = {"content-length": str(len(body) if size is None else size)}
        if key:
            signature = PRIVATE[by or key].sign(time.encode(), ec.ECDSA(hashes.SHA256()))
            signed = {"flwr-signature": b64encode(signature).decode(), "flwr-timestamp": time}
            given |= signed | {"flwr-public-key": b64encode(PEM[key].encode()).decode()}
        given |= headers
        if token is not None:
            given["authorization"] = f"Bearer {token}"
        encoded = [(name.encode(), value.encode()) for name, value in given.items() if value]
        scope = {"type": "http", "path": path, "headers": encoded, "client": (peer, 5000), "server": ("10.0.0.5", 8000)}
        sent = []

        async def receive():
            self.read += 1
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            sent.append(message)

        asyncio.run(self.guard(scope, receive, send))
        return sent[0]["status"]

    def question(self, to, number):
        """Flower hands a message to a client."""
        about = Metadata(message_id=number, src_node_id=1, dst_node_id=NODES[to])
        self.behind.body = PullMessagesResponse(messages_list=[Message(metadata=about)]).SerializeToString()
        assert self.ask("/v1/fleet/pull-messages", key=to) == 200
        self.behind.body = b""

    def reply(self, by, to="", src=None, dst=1):
        about = Metadata(src_node_id=src or NODES[by], dst_node_id=dst, reply_to_message_id=to)
        push = PushMessagesRequest(node=Node(node_id=NODES[by]), messages_list=[Message(metadata=about)])
        return self.ask("/v1/fleet/push-messages", key=by, body=push.SerializeToString())

    def open(self):
        assert self.ask("/fedbraid", token=TOKEN) == 200
        return self


def test_nobody_gets_in_before_the_keys_are_registered():
    world = World()
    assert world.ask("/v1/fleet/activate-node") == 503  # which a SuperNode takes as a reason to try again
    assert world.ask("/fedbraid") == 200 and world.ask("/fedbraid", token="guessed") == 200
    assert world.ask("/v1/fleet/activate-node") == 503
    world.open()
    assert world.ask("/v1/fleet/activate-node") == 200
    assert world.behind.asked == ["/v1/fleet/activate-node"]


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/control/register-node", "/docs", "/openapi.json", "/"])
@pytest.mark.parametrize("peer", ["10.0.0.7", "127.0.0.1"])
@pytest.mark.parametrize("token", [None, "", "guessed"])
def test_runs_and_keys_are_for_who_has_the_token(path, peer, token):
    world = World().open()
    assert world.ask(path, peer=peer, token=token) == 403
    assert world.behind.asked == []
    assert len(world.lines) == 1 and peer in world.lines[0] and path in world.lines[0]


def test_the_token_opens_the_control_interface_alone():
    world = World().open()
    assert world.ask("/v1/control/start-run", token=TOKEN) == 200
    assert world.ask("/docs", token=TOKEN) == 403


@pytest.mark.parametrize(
    "peer, here",
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.5", True),
        ("10.0.0.7", False),
        ("x", False),
    ],
)
def test_the_runtime_interface_is_for_this_machine(peer, here):
    assert (World().open().ask("/v1/runtime/pull-messages", peer=peer) == 200) is here


def test_a_key_that_is_not_in_the_roster_is_told_of():
    world = World().open()
    assert world.ask("/v1/fleet/activate-node", key="another") == 412
    assert world.ask("/fedbraid", key="another") == 401
    assert world.lines == ["refused: 10.0.0.7 came with a key that is not in the roster"] * 2


def test_a_key_of_the_roster_is_known_and_may_have_to_wait():
    """Flower lets it in when it has noticed that whoever had it before is gone."""
    world = World(status=412).open()
    assert world.ask("/fedbraid") == 200 and world.ask("/fedbraid", key="") == 200
    assert world.ask("/v1/fleet/activate-node") == 412
    assert world.lines == []


@pytest.mark.parametrize(
    "signed",
    [
        {"by": "hospital-b"},
        {"late": 400.0},
        {"late": -60.0},
        {"flwr-signature": "x"},
        {"flwr-timestamp": "now"},
        {"flwr-signature": ""},
    ],
)
def test_nothing_is_read_of_who_has_not_signed(signed):
    """Anyone can write hospital-a's key into a header, but not sign with it."""
    world = World().open()
    assert world.ask("/v1/fleet/activate-node", **signed) == 401
    assert world.ask("/v1/fleet/push-object", size=PIECE, **signed) == 401
    assert world.ask("/v1/fleet/push-object", size=PIECE, key="another") == 401
    assert world.behind.asked == [] and world.read == 0
    assert world.lines[0].endswith("hospital-a at 10.0.0.7: not signed with its key, or by a clock that is off")
    assert world.ask("/v1/fleet/push-object", size=4_000_000) == 200  # what others sent in its name counts for nothing


def test_a_client_of_an_earlier_server_is_sent_to_join_again_without_a_word():
    """Flower's SuperNode ends when it is refused; `join` starts another."""
    world = World(status=401).open()
    assert world.ask("/v1/fleet/pull-messages") == 401
    assert world.lines == []
    world.behind.status = 200
    assert world.ask("/v1/fleet/activate-node") == 200
    world.behind.status = 401
    assert world.ask("/v1/fleet/pull-messages", peer="10.0.0.66") == 401
    assert len(world.lines) == 1 and "hospital-a at 10.0.0.66" in world.lines[0]


@pytest.mark.parametrize("size, length", [(PIECE + 1, {}), (0, {"content-length": ""}), (0, {"content-length": "-5"})])
def test_a_request_that_is_too_large_or_does_not_say_is_not_read(size, length):
    world = World().open()
    assert world.ask("/v1/fleet/push-object", size=size, **length) == 413
    assert world.behind.asked == [] and len(world.lines) == 1


@pytest.mark.parametrize("path", ["push-messages", "pull-messages", "activate-node", "send-node-heartbeat"])
def test_only_pieces_of_answers_are_large(path):
    world = World().open()
    assert world.ask(f"/v1/fleet/{path}", size=SMALL + 1) == 413
    assert world.behind.asked == [] and world.read == 0


def test_an_answer_may_have_so_many_bytes_in_all():
    world = World().open()
    world.question("hospital-a", "m1"), world.question("hospital-a", "m2")
    assert world.reply("hospital-a", "m1") == 200
    assert [world.ask("/v1/fleet/push-object", size=4_000_000) for _ in range(4)] == [200, 200, 413, 413]
    assert world.ask("/v1/fleet/push-object", size=4_000_000, key="hospital-b") == 200
    assert "hospital-a" in world.lines[0]
    assert world.reply("hospital-a", "m2") == 200  # the next answer
    assert world.ask("/v1/fleet/push-object", size=4_000_000) == 200


def test_only_what_flower_accepts_counts():
    world = World().open()
    world.behind.status = 401
    for _ in range(5):
        assert world.ask("/v1/fleet/push-object", size=4_000_000) == 401
    world.behind.status = 200
    assert world.ask("/v1/fleet/push-object", size=4_000_000) == 200


def test_pieces_under_way_at_once_count_together():
    world = World().open()
    waiting = []

    async def hold(scope, receive, send):
        waiting.append(world.ask_again() if len(waiting) < 2 else None)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    statuses = []
    world.guard.app = hold
    world.ask_again = lambda: statuses.append(_in_thread(lambda: world.ask("/v1/fleet/push-object", size=4_000_000)))
    assert world.ask("/v1/fleet/push-object", size=4_000_000) == 200
    assert sorted(statuses) == [200, 413]


def _in_thread(work):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


# --- whom messages are from, and for


@pytest.mark.parametrize(
    "message, reason",
    [
        ({"to": "m1", "dst": NODES["hospital-b"]}, "sent a message to another client"),
        ({"to": "", "dst": NODES["hospital-b"]}, "sent a message to another client"),
        ({"to": "m1", "src": 1, "dst": NODES["hospital-b"]}, "sent a message in another client's name"),
        ({"to": "m1", "src": NODES["hospital-b"]}, "sent a message in another client's name"),
        ({"to": ""}, "sent a message that nobody asked for"),
        ({"to": "m2"}, "sent a message that nobody asked for"),
    ],
)
def test_a_client_speaks_for_itself_and_to_the_server_alone(message, reason):
    world = World().open()
    world.question("hospital-a", "m1"), world.question("hospital-b", "m2")
    world.behind.asked.clear()
    assert world.reply("hospital-a", **message) == 403
    assert world.behind.asked == [] and world.lines == [f"refused: hospital-a at 10.0.0.7 {reason}"]
    assert world.reply("hospital-a", "m1") == 200


def test_a_question_is_answered_a_few_times_at_most():
    world = World().open()
    world.question("hospital-a", "m1")
    assert [world.reply("hospital-a", "m1") for _ in range(REPLIES + 1)] == [200] * REPLIES + [403]


def test_what_is_no_message_is_refused():
    world = World().open()
    assert world.ask("/v1/fleet/push-messages", body=b"\xff" * 50) == 403
    assert world.lines == ["refused: hospital-a at 10.0.0.7 sent a reply that cannot be read"]


def test_the_same_line_is_said_once_a_minute(monkeypatch):
    now, lines = [0.0], []
    monkeypatch.setattr("fedbraid.deploy.guard.monotonic", lambda: now[0])
    say = once_a_minute(lines.append)
    for now[0] in (0.0, 1.0, 59.0, 61.0):
        say("a")
        say("b")
    assert lines == ["a", "b", "a", "b"]


def test_a_connection_without_tls_is_told_of():
    lines = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    loud_about_tls(context, lines.append)
    incoming = ssl.MemoryBIO()
    end = context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        end.do_handshake()
    assert lines == []
    incoming.write(b"POST /v1/fleet/activate-node HTTP/1.1\r\nhost: here\r\n\r\n")
    with pytest.raises(ssl.SSLError):
        end.do_handshake()
    assert lines == ["refused: a connection that is not TLS as this server speaks it (it was not encrypted)"]
