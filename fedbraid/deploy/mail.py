"""The server's letters: who has been greeted, what is sent, and which answers are taken.

The server believes no answer. It is read if it is no larger than what is due, and taken if it is what was asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

from fedbraid.deploy.letters import ROOM, Letter, Refused, Shapes, Stranger, at_most, check_tensors, mark, read
from fedbraid.deploy.register import Register
from fedbraid.deploy.scores import Part, counts_of
from fedbraid.deploy.transport import Transport

log = logging.getLogger("fedbraid")

T = TypeVar("T")
NO_ROUND = -1


@dataclass(eq=False)
class Mail:
    """Between the server and those of the roster who are there."""

    transport: Transport
    register: Register
    greeting: Callable[[int], Letter]  # what the client of that number is told first
    seconds: float  # that clients have for an answer
    pause: float  # seconds until somebody who did not take the greeting is greeted again
    greeted: dict[str, dict[Part, int]] = field(default_factory=dict)  # how many samples they can test a model on
    unfit: dict[str, tuple[str, float]] = field(default_factory=dict)  # who did not take the greeting: why, and when

    def greet_newcomers(self) -> None:
        """Say hello to those who are there and have not heard it from this server."""
        new = set(self.transport.present()) - self.greeted.keys()
        new -= {name for name, (_, when) in self.unfit.items() if monotonic() < when + self.pause}
        self._greet([name for name in self.register.roster if name in new])

    def unheard(self, present: Iterable[str]) -> set[str]:
        """Those of the roster who are there and have never been greeted."""
        return set(present) & set(self.register.roster) - self.greeted.keys() - self.unfit.keys()

    def here(self) -> set[str]:
        """Those who can be asked."""
        return self.greeted.keys() & set(self.transport.present())

    def why_not_here(self, name: str) -> str:
        return self.unfit[name][0] if name in self.unfit else "it is not connected"

    def ask(
        self, letters: Mapping[str, bytes], round: int, due: Shapes, take: Callable[[Letter], T], room: int = ROOM
    ) -> tuple[dict[str, T], dict[str, str]]:
        """What is taken from the answers, and why the others are not. Who has forgotten the run is asked once more."""
        taken, refused, strangers = self._asked(letters, round, due, take, room)
        if not strangers:
            return taken, refused
        self._greet(strangers)
        again = {name: letters[name] for name in strangers if name in self.greeted}
        later, still, _ = self._asked(again, round, due, take, room)
        unfit = {name: self.why_not_here(name) for name in strangers if name not in again}
        return taken | later, refused | unfit | still

    def _asked(
        self, letters: Mapping[str, bytes], round: int, due: Shapes, take: Callable[[Letter], T], room: int = ROOM
    ) -> tuple[dict[str, T], dict[str, str], list[str]]:
        answers = self.transport.exchange(letters, self.seconds) if letters else {}
        taken, refused, strangers = dict[str, T](), dict[str, str](), list[str]()
        for name, letter in letters.items():
            try:
                taken[name] = take(self._opened(answers.get(name), letter, round, due, room))
            except Refused as no:
                refused[name] = str(no)
                if isinstance(no, Stranger):
                    strangers.append(name)
        return taken, refused, strangers

    def _opened(self, answer: bytes | None, to: bytes, round: int, due: Shapes, room: int) -> Letter:
        """An answer that is what it should be."""
        if answer is None:
            raise Refused("it did not answer in time")
        letter = read(answer, at_most(due, room))
        letter.must_be("answer", self.register.run, round)
        if letter.told.get("to") != mark(to):
            raise Refused("it answers another letter")
        check_tensors(letter.tensors, due)
        return letter

    def _greet(self, names: Sequence[str]) -> None:
        letters = {name: self.greeting(self.register.roster.index(name)).written() for name in names}
        counts, refused, _ = self._asked(letters, NO_ROUND, {}, _counts)
        for name, (samples, tests) in counts.items():
            try:
                self.register.note(name, samples)
                self.greeted[name] = tests
                self.unfit.pop(name, None)
            except Refused as no:
                refused[name] = str(no)
        for name, reason in refused.items():
            self.greeted.pop(name, None)
            self.unfit[name] = reason, monotonic()
            log.warning("%s cannot take part: %s", name, reason)


def _counts(answer: Letter) -> tuple[int, dict[Part, int]]:
    """How many samples a client has to train on, and to test on."""
    return answer.count("samples", 1), counts_of(answer)
