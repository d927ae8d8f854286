"""The server's messages: who has been ready, what is sent, and which answers are taken.

The server believes no answer. It is read if it is no larger than what is due, and taken if it is what was asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

from fedbraid.deploy.audit import record
from fedbraid.deploy.membership import Membership
from fedbraid.deploy.messages import (
    ROOM,
    Message,
    MessageRefused,
    Shapes,
    UnknownRun,
    at_most,
    check_tensors,
    digest,
    read,
)
from fedbraid.deploy.scores import SamplePart, counts_of
from fedbraid.deploy.transport import Transport

log = logging.getLogger("fedbraid")

T = TypeVar("T")
NO_ROUND = -1


@dataclass(eq=False)
class Channel:
    """Between the server and those of the roster who are there."""

    transport: Transport
    membership: Membership
    greeting: Callable[[int], Message]  # what the client of that number is told first
    seconds: float  # that clients have for an answer
    pause: float  # seconds until somebody who did not take the greeting is ready again
    ready: dict[str, dict[SamplePart, int]] = field(default_factory=dict)  # how many samples they can test a model on
    rejected: dict[str, tuple[str, float]] = field(default_factory=dict)  # who did not take the greeting: why, and when

    def handshake_new_clients(self) -> None:
        """Say hello to those who are there and have not heard it from this server."""
        new = set(self.transport.present()) - self.ready.keys()
        new -= {name for name, (_, when) in self.rejected.items() if monotonic() < when + self.pause}
        self._handshake([name for name in self.membership.roster if name in new])

    def without_handshake(self, present: Iterable[str]) -> set[str]:
        """Those of the roster who are there and have never been ready."""
        return set(present) & set(self.membership.roster) - self.ready.keys() - self.rejected.keys()

    def here(self) -> set[str]:
        """Those who can be asked."""
        return self.ready.keys() & set(self.transport.present())

    def why_not_here(self, name: str) -> str:
        return self.rejected[name][0] if name in self.rejected else "it is not connected"

    def ask(
        self, messages: Mapping[str, bytes], round: int, due: Shapes, take: Callable[[Message], T], room: int = ROOM
    ) -> tuple[dict[str, T], dict[str, str]]:
        """Send messages; return what `take` makes of the answers, and why others are refused."""
        taken, refused, unknown = self._asked(messages, round, due, take, room)
        if not unknown:
            return taken, refused
        self._handshake(unknown)
        again = {name: messages[name] for name in unknown if name in self.ready}
        later, still, _ = self._asked(again, round, due, take, room)
        rejected = {name: self.why_not_here(name) for name in unknown if name not in again}
        return taken | later, refused | rejected | still

    def _asked(
        self, messages: Mapping[str, bytes], round: int, due: Shapes, take: Callable[[Message], T], room: int = ROOM
    ) -> tuple[dict[str, T], dict[str, str], list[str]]:
        answers = self.transport.exchange(messages, self.seconds) if messages else {}
        taken, refused, unknown = dict[str, T](), dict[str, str](), list[str]()
        for name, message in messages.items():
            try:
                taken[name] = take(self._opened(answers.get(name), message, round, due, room))
            except MessageRefused as no:
                refused[name] = str(no)
                if isinstance(no, UnknownRun):
                    unknown.append(name)
        return taken, refused, unknown

    def _opened(self, answer: bytes | None, to: bytes, round: int, due: Shapes, room: int) -> Message:
        """An answer that is what it should be."""
        if answer is None:
            raise MessageRefused("it did not answer in time")
        message = read(answer, at_most(due, room))
        message.require("answer", self.membership.run, round)
        if message.payload.get("to") != digest(to):
            raise MessageRefused("it answers another message")
        check_tensors(message.tensors, due)
        return message

    def _handshake(self, names: Sequence[str]) -> None:
        messages = {name: self.greeting(self.membership.roster.index(name)).to_bytes() for name in names}
        counts, refused, _ = self._asked(messages, NO_ROUND, {}, _counts)
        for name, (samples, tests) in counts.items():
            try:
                for count in (samples, *tests.values()):
                    self.membership.check_count(count)
                self.membership.note(name, samples)
                self.ready[name] = tests
                self.rejected.pop(name, None)
                record("accepted", f"it has {samples:,} training samples", client=name)
            except MessageRefused as no:
                refused[name] = str(no)
        for name, reason in refused.items():
            self.ready.pop(name, None)
            self.rejected[name] = reason, monotonic()
            log.warning("%s cannot take part: %s", name, reason)
            record("refused", f"it cannot take part: {reason}", client=name)


def _counts(answer: Message) -> tuple[int, dict[SamplePart, int]]:
    """Read a client's numbers of training and test samples."""
    return answer.count("samples", 1), counts_of(answer)
