"""How letters travel. Here only between objects of one process, for trials; `flower` sends them over a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


class Transport(Protocol):
    """The server's side. Clients go by their names, which the transport vouches for."""

    def present(self) -> list[str]:
        """Those who can be reached now."""
        ...

    def exchange(self, letters: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        """Send each client its letter; the answers of those who answer in time. Others are missing."""
        ...


class Answering(Protocol):
    """A client's side."""

    def answer(self, letter: bytes) -> bytes: ...


Outward = Callable[[str, bytes], Iterable[bytes]]
"""(client, letter) -> the letters that reach it: none, one, or the same one twice."""
Homeward = Callable[[str, bytes, bytes], bytes | None]
"""(client, its letter, its answer) -> the answer that reaches the server."""


@dataclass
class InProcess:
    """Clients of this process. Letters travel as bytes, and each meets a client that was made anew.

    `outward` and `homeward` are what may happen on the way.
    """

    clients: Mapping[str, Callable[[], Answering]]
    outward: Outward = lambda client, letter: (letter,)
    homeward: Homeward = lambda client, letter, answer: answer
    away: set[str] = field(default_factory=set)  # clients that cannot be reached
    sent: list[tuple[str, bytes, bytes | None]] = field(default_factory=list)  # client, letter, the answer that came

    def present(self) -> list[str]:
        return [name for name in self.clients if name not in self.away]

    def exchange(self, letters: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
        came: dict[str, bytes] = {}
        for name, letter in letters.items():
            answer: bytes | None = None
            for copy in self.outward(name, letter) if name not in self.away else ():
                answer = self.homeward(name, letter, self.clients[name]().answer(copy))
            self.sent.append((name, letter, answer))
            if answer is not None:
                came[name] = answer
        return came
