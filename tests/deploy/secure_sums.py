"""A secure sum in one process. Between messages every client is put away as bytes, as if it were a new process each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedbraid.deploy.secagg.aggregator import Aggregator
from fedbraid.deploy.secagg.masks import add_mask, pair_mask
from fedbraid.deploy.secagg.participant import Participant
from fedbraid.deploy.secagg.protocol import Session
from fedbraid.deploy.secagg.shamir import interpolation, join

SESSION = Session("a-run", 3, "train")
NEVER = 9
"""The step at which a client that stays is lost."""


class Sum:
    """Clients and a server, step by step; roots are fixed so that what tests see is the same each time."""

    def __init__(self, numbers: Mapping[str, np.ndarray], session: Session = SESSION, **options: Any) -> None:
        self.numbers = dict(numbers)
        self.server = Aggregator(session, len(next(iter(numbers.values()))), **options)
        self.clients = {
            name: Participant(session, name, hashlib.sha256(f"{name} {session}".encode()).digest()) for name in numbers
        }
        self.roster, self.delivered, self.payload = b"", {}, b""
        self.masked: dict[str, np.ndarray] = {}

    def each(self, names: Any, answer: Callable[[Participant], Any]) -> dict[str, Any]:
        """The answers of some clients, who are put away and brought back afterwards."""
        answers = {name: answer(self.clients[name]) for name in names}
        self.clients = {name: Participant.restored(client.state()) for name, client in self.clients.items()}
        return answers

    def introduce(self, names: Any = None) -> None:
        self.roster = self.server.roster(self.each(self.clients if names is None else names, lambda c: c.advert()))

    def share(self, names: Any = None) -> None:
        self.delivered = self.server.deliver(
            self.each(self.clients if names is None else names, lambda c: c.share(self.roster))
        )

    def mask(self, names: Any = None) -> None:
        came = self.each(
            self.delivered if names is None else names,
            lambda c: c.mask(self.delivered[c.name], self.numbers[c.name]),
        )
        self.masked |= came
        self.payload = self.server.survivors(came)

    def reveal(self, names: Any = None) -> np.ndarray:
        return self.server.total(self.each(self.masked if names is None else names, lambda c: c.reveal(self.payload)))

    def run(self, lost: Mapping[str, int] | None = None) -> np.ndarray:
        """The sum where clients are lost at steps: 0 before their keys, 1 before their shares, … 3 before revealing."""
        here = [[name for name in self.clients if (lost or {}).get(name, NEVER) > step] for step in range(4)]
        self.introduce(here[0])
        self.share(here[1])
        self.mask(here[2])
        return self.reveal(here[3])


def cohort(clients: int, numbers: Callable[[int], Any]) -> dict[str, np.ndarray]:
    return {f"client-{k}": np.asarray(numbers(k), dtype=np.uint64) for k in range(clients)}


def total(numbers: Mapping[str, np.ndarray], names: Any) -> np.ndarray:
    """The sum modulo 2⁶⁴, by Python's whole numbers."""
    columns = zip(*(numbers[name].tolist() for name in names), strict=True)
    return np.array([sum(column) % 2**64 for column in columns], dtype=np.uint64)


def put_together(game: Sum, helpers: list[str], revealed: Mapping[str, Mapping[str, bytes]], of: str) -> bytes:
    """The secret of a client that the server learns from what `helpers` revealed."""
    weights = interpolation([list(game.clients).index(name) + 1 for name in helpers])
    return join([revealed[name][of] for name in helpers], weights)


def without_pair_masks(game: Sum, of: str, key: bytes, others: Any) -> np.ndarray:
    """What `of` sent less the masks that it shares with `others`, from its pair key."""
    roster = game.clients[of].roster
    assert roster is not None
    vector = game.masked[of].copy()
    for other in others:
        seed, sign = pair_mask(roster, of, key, other)
        add_mask(vector, seed, -sign)
    return vector
