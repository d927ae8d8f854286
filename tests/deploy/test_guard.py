"""What stands before the SuperLink: who gets how far, and what is told of those who do not."""

import asyncio
import ssl
from base64 import b64encode

import pytest

from fedbraid.deploy.guard import PIECE, Guard, loud_about_tls, once_a_minute

TOKEN, MOST = "secret", 10_000_000
KEY = "the key of hospital-a"


class Behind:
    """An application that answers as told and notes what it was asked."""

    def __init__(self, status=200):
        self.status, self.asked = status, []

    async def __call__(self, scope, receive, send):
        self.asked.append(scope["path"])
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class World:
    def __init__(self, status=200):
        self.behind, self.lines = Behind(status), []
        self.guard = Guard(self.behind, TOKEN, MOST, {KEY: "hospital-a"}, self.lines.append)

    def ask(self, path, peer="10.0.0.7", size=0, token=None, key=KEY, **headers):
        """The status of an answer to a request."""
        given = {"content-length": str(size), "flwr-public-key": b64encode(key.encode()).decode()} | headers
        if token is not None:
            given["authorization"] = f"Bearer {token}"
        encoded = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items() if value]
        scope = {"type": "http", "path": path, "headers": encoded, "client": (peer, 5000), "server": ("10.0.0.5", 8000)}
        sent = []

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            sent.append(message)

        asyncio.run(self.guard(scope, receive, send))
        return sent[0]["status"]

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
    world = World(status=412).open()
    assert world.ask("/v1/fleet/activate-node", key="another") == 412
    assert world.ask("/fedbraid", key="another") == 401
    assert world.lines == ["refused: 10.0.0.7 came with a key that is not in the roster"] * 2


def test_a_key_of_the_roster_is_known_and_may_have_to_wait():
    """Flower lets it in when it has noticed that whoever had it before is gone."""
    world = World(status=412).open()
    assert world.ask("/fedbraid") == 200 and world.ask("/fedbraid", key="") == 200
    assert world.ask("/v1/fleet/activate-node") == 412
    assert world.lines == []


def test_a_key_without_its_signature_is_told_of():
    world = World(status=401).open()
    assert world.ask("/v1/fleet/activate-node") == 401
    assert world.lines == [
        "refused: a request of hospital-a at 10.0.0.7: not signed with its key, or by a clock that is off"
    ]


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


def test_an_answer_may_have_so_many_bytes_in_all():
    world = World().open()
    assert world.ask("/v1/fleet/push-messages", size=100) == 200
    assert [world.ask("/v1/fleet/push-object", size=4_000_000) for _ in range(4)] == [200, 200, 413, 413]
    assert world.ask("/v1/fleet/push-object", size=4_000_000, key="another") == 200
    assert "hospital-a" in world.lines[0]
    assert world.ask("/v1/fleet/push-messages", size=100) == 200  # the next answer
    assert world.ask("/v1/fleet/push-object", size=4_000_000) == 200


def test_only_what_flower_accepts_counts():
    """Anyone can write hospital-a's key into a header, but not sign with it."""
    world = World().open()
    world.behind.status = 401
    for _ in range(5):
        assert world.ask("/v1/fleet/push-object", size=4_000_000) == 401
    world.behind.status = 200
    assert world.ask("/v1/fleet/push-object", size=4_000_000) == 200


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
