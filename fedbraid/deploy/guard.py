"""Guard Flower's SuperLink, which has one port for everything and asks nobody who is starting a run.

Anyone who reaches that port could register a key or have the server and every client run code of theirs. So clients
get no further than the Fleet interface, where Flower checks their keys; the rest is for the server's own processes.

Three invariants hold before Flower sees a request. Without them the port would be open to:
- a body is read only after its sender has signed the request, where clients have keys (else: anyone fills the memory);
- a client's messages are its own, to the server, and answers (else: it could pass for the server, `flower_fleet`);
- what a client has sent and Flower has stored is bounded, requests under way included (else: many at once exceed it).
Refusals are one line each.
"""

from __future__ import annotations

import hmac
import json
import ssl
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from ipaddress import ip_address
from time import monotonic
from typing import Any, Protocol

from fedbraid.deploy.audit import record

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

FLEET, CONTROL, RUNTIME, STATUS_PATH = "/v1/fleet/", "/v1/control/", "/v1/runtime/", "/fedbraid"
PIECE = 64 * 2**20
"""Bytes of a request that brings a piece of an answer. Flower cuts what it sends into pieces of 5 MiB."""

SMALL = 4 * 2**20
"""Bytes of every other request: a message without its arrays, a sign of life."""

KEY = b"flwr-public-key"
QUIET = 60.0
"""Seconds in which the same refusal is not told again."""


class Rules(Protocol):
    """Reading of Flower's messages for the guard (`flower_fleet.FleetRules`)."""

    def is_signed(self, headers: Mapping[bytes, bytes]) -> bool: ...

    def note_questions(self, body: bytes) -> None: ...

    def refusal(self, body: bytes) -> str: ...


class Guard:
    """An ASGI application before another one.

    Args:
        app: the application that is guarded.
        token: the secret of the server's own processes.
        most: bytes of one answer.
        names: clients by their public keys (PEM); empty = no keys, names are believed.
        say: called with a line for each refusal.
        rules: what is read of Flower's messages.
    """

    def __init__(
        self, app: App, token: str, most: int, names: Mapping[str, str], say: Callable[[str], None], rules: Rules
    ) -> None:
        self.app, self.token, self.most, self.names, self.say, self.rules = app, token, most, names, say, rules
        self.sent: dict[bytes, int] = {}  # bytes of each key's answer so far, those on their way included
        self.active: set[bytes] = set()  # keys that were let in
        self.open = False  # until the server has registered its clients' keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._request(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, headers = scope["path"], dict(scope["headers"])
        ours = hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {self.token}".encode())
        if path == STATUS_PATH:
            self.open |= ours
            await self._pulse(scope, send, headers.get(KEY, b""))
        elif path.startswith(FLEET) and not self.open:
            await _reply(send, 503, "not yet")
        elif path.startswith(FLEET):
            await self._fleet(scope, receive, send)
        elif (path.startswith(CONTROL) and ours) or (path.startswith(RUNTIME) and _from_here(scope)):
            await self.app(scope, receive, send)
        else:
            self._refuse(f"{_peer(scope)} asked for {_printable(path)}, which is for the server's own processes")
            await _reply(send, 403, "refused")

    async def _pulse(self, scope: Scope, send: Send, key: bytes) -> None:
        """That it answers shows that it is there; a client also learns whether its key is known."""
        unknown_run = bool(key and self.names and not self._name(key))
        if unknown_run:
            self._refuse(f"{_peer(scope)} came with a key that is not in the roster", key)
        await _reply(send, 401 if unknown_run else 200, "fedbraid")

    async def _fleet(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, headers = scope["path"].removeprefix(FLEET), dict(scope["headers"])
        key = headers.get(KEY, b"")
        size = int(length) if (length := headers.get(b"content-length", b"")).isdigit() else -1
        if not 0 <= size <= (PIECE if path == "push-object" else SMALL):  # -1 = it does not say
            self._refuse(f"{_peer(scope)} sent a request of {size:,} bytes")
            await _reply(send, 413, "the request is too large")
        elif self.names and not self._name(key):
            self._refuse(f"{_peer(scope)} came with a key that is not in the roster", key)
            await _reply(send, 412 if path in ("activate-node", "register-node") else 401, "this key is not known")
        elif self.names and not self.rules.is_signed(headers):
            self._say_unsigned(scope, key)
            await _reply(send, 401, "the request is not signed")
        elif path == "push-object":
            await self._piece(scope, receive, send, key, size)
        elif path == "push-messages":
            await self._push(scope, receive, send, key)
        else:
            await self._pass_on(scope, receive, send, path, key)

    async def _piece(self, scope: Scope, receive: Receive, send: Send, key: bytes, size: int) -> None:
        """A piece of an answer. It counts before it is read, so that many at once are bounded as one after another."""
        if self.sent.get(key, 0) + size > self.most:
            self._refuse(f"{self._who(scope, key)} sent an answer of more than {self.most:,} bytes", key)
            while (await receive()).get("more_body"):
                pass  # whoever is cut off in the middle of a request tries again and again
            await _reply(send, 413, "the answer is too large")
            return
        self.sent[key] = self.sent.get(key, 0) + size
        status = await self._pass_on(scope, receive, send, "push-object", key)
        if status >= 400:  # Flower stored nothing
            self.sent[key] = max(0, self.sent.get(key, 0) - size)

    async def _push(self, scope: Scope, receive: Receive, send: Send, key: bytes) -> None:
        """A client's reply, whose pieces follow."""
        body = await _whole(receive, SMALL)
        if body is None:
            await _reply(send, 413, "the request is too large")
        elif reason := self.rules.refusal(body):
            self._refuse(f"{self._who(scope, key)} {reason}", key)
            await _reply(send, 403, "refused")
        else:
            self.sent[key] = 0  # a reply to a question; the rules bound how many there are

            async def again() -> MutableMapping[str, Any]:
                return {"type": "http.request", "body": body, "more_body": False}

            await self._pass_on(scope, again, send, "push-messages", key)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, path: str, key: bytes) -> int:
        """Have Flower answer; the status of its answer. Questions that it hands out are noted."""
        status, pulled = 500, bytearray()

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._note(scope, path, key, status)
            elif path == "pull-messages":
                pulled.extend(message.get("body", b""))
                if not message.get("more_body"):
                    self.rules.note_questions(bytes(pulled))
            await send(message)

        await self.app(scope, receive, watched)
        return status

    def _note(self, scope: Scope, path: str, key: bytes, status: int) -> None:
        """Log what Flower refused: only its word counts, as anyone can write a key into a header."""
        if status < 400 and path == "activate-node":
            self.active.add(key)
        elif status == 401:
            self._say_unsigned(scope, key, path)
        elif status >= 400 and path in ("activate-node", "register-node") and not self._name(key):
            self._refuse(f"{_peer(scope)} came with a key that is not in the roster", key)

    def _say_unsigned(self, scope: Scope, key: bytes, path: str = "activate-node") -> None:
        if key in self.active or path == "activate-node":  # else it was let in by a server before
            self._refuse(
                f"a request of {self._who(scope, key)}: not signed with its key, or by a clock that is off",
                key,
            )

    def _refuse(self, sentence: str, key: bytes = b"") -> None:
        """Tell of a refusal: once a minute in the log, and each time in the audit log."""
        self.say(f"refused: {sentence}")
        record("refused", sentence, client=self._name(key) or "", key=_pem(key))

    def _who(self, scope: Scope, key: bytes) -> str:
        return f"{self._name(key)} at {_peer(scope)}" if self._name(key) else _peer(scope)

    def _name(self, key: bytes) -> str | None:
        """Return the client whose key a header names; anyone can write a header."""
        try:
            return self.names.get(b64decode(key, validate=True).decode())
        except ValueError:
            return None


def once_a_minute(say: Callable[[str], None]) -> Callable[[str], None]:
    """`say`, but for what was said shortly before."""
    said: dict[str, float] = {}

    def sometimes(text: str) -> None:
        now = monotonic()
        if now - said.get(text, -QUIET) >= QUIET:
            if len(said) > 1000:  # somebody is playing
                said.clear()
            said[text] = now
            say(text)

    return sometimes


def loud_about_tls(context: ssl.SSLContext, say: Callable[[str], None]) -> None:
    """Have `context` tell of connections that fail to begin."""

    class Loud(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                say(f"refused: a connection that is not TLS as this server speaks it ({explained(error)})")
                raise

    context.sslobject_class = Loud


def explained(error: ssl.SSLError) -> str:
    reason = error.reason or type(error).__name__
    return {
        "HTTP_REQUEST": "it was not encrypted",
        "TLSV1_ALERT_UNKNOWN_CA": "the other side does not trust this server's certificate",
        "SSLV3_ALERT_BAD_CERTIFICATE": "the other side does not accept this server's certificate",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other side does not accept this server's certificate",
    }.get(reason, reason.lower().replace("_", " "))


def _pem(key: bytes) -> str:
    """The key in a header, or nothing."""
    try:
        return b64decode(key, validate=True).decode()
    except ValueError:
        return ""


async def _whole(receive: Receive, most: int) -> bytes | None:
    """Read a body of at most so many bytes; None if it is larger than its header said."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False) and message["type"] != "http.disconnect"
        if len(body) > most:
            return None
    return bytes(body)


async def _reply(send: Send, status: int, detail: str) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _peer(scope: Scope) -> str:
    return str((scope.get("client") or ("somebody",))[0])


def _from_here(scope: Scope) -> bool:
    """Return whether a connection comes from this machine: from the loopback, or its own address."""
    peer = _peer(scope)
    try:
        address = ip_address(peer)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or peer == (scope.get("server") or ("",))[0]


def _printable(path: str) -> str:
    return ascii(path[:80])
