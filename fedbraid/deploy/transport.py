"""Transport of messages: here between objects of one process, for tests; `flower` sends them over a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


class Transport(Protocol):
    """The server's side. Clients go by their names, which the transport vouches for."""

    def present(self) -> list[str]:
        """Those who can be reached now."""
        ...

    def exchange(self, messages: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        """Send each client its message; the answers of those who answer in time. Others are missing."""
        ...


class MessageHandler(Protocol):
    """A client's side."""

    def answer(self, message: bytes) -> bytes: ...


OnRequest = Callable[[str, bytes], Iterable[bytes]]
"""(client, message) -> the messages that reach it: none, one, or the same one twice."""
OnReply = Callable[[str, bytes, bytes], bytes | None]
"""(client, its message, its answer) -> the answer that reaches the server."""


@dataclass
class InProcess:
    """Clients of this process. Messages travel as bytes, and each meets a client that was made anew.

    `on_request` and `on_reply` are what may happen on the way.
    """

    clients: Mapping[str, Callable[[], MessageHandler]]
    on_request: OnRequest = lambda client, message: (message,)
    on_reply: OnReply = lambda client, message, answer: answer
    away: set[str] = field(default_factory=set)  # clients that cannot be reached
    sent: list[tuple[str, bytes, bytes | None]] = field(default_factory=list)  # client, message, the answer that came

    def present(self) -> list[str]:
        return [name for name in self.clients if name not in self.away]

    def exchange(self, messages: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        came: dict[str, bytes] = {}
        for name, message in messages.items():
            answer: bytes | None = None
            for copy in self.on_request(name, message) if name not in self.away else ():
                answer = self.on_reply(name, message, self.clients[name]().answer(copy))
            self.sent.append((name, message, answer))
            if answer is not None:
                came[name] = answer
        return came
