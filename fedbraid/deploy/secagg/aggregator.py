"""The server's side of one secure sum."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import numpy as np

from fedbraid.deploy.secagg.fixed_point import Numbers
from fedbraid.deploy.secagg.key_agreement import Verify, agreed, public
from fedbraid.deploy.secagg.masks import add_mask, own_mask, pair_mask, promise
from fedbraid.deploy.secagg.protocol import (
    LEAST,
    Advert,
    KeyRoster,
    ProtocolError,
    Session,
    TooFewParticipants,
    majority,
    read,
    read_shares,
    write,
)
from fedbraid.deploy.secagg.shamir import SHARE, interpolation, join

ANY = bytes(range(32))
"""A private key to try others' public keys with."""

T = TypeVar("T")
U = TypeVar("U")


class Aggregator:
    """Four steps, each given the answers to the one before, by name; a client without a good answer is lost.

    `refused` maps clients to the reason why their answer was refused. A step raises `TooFewParticipants` when too few
    clients are left to unmask the sum.
    """

    def __init__(
        self, session: Session, length: int, *, threshold: int | None = None, verify: Verify | None = None
    ) -> None:
        self.session, self.length, self.threshold, self.verify = session, length, threshold, verify
        self.refused: dict[str, str] = {}
        self._roster = KeyRoster(0, {}, b"")
        self._sharing: frozenset[str] = frozenset()
        self._surviving: frozenset[str] = frozenset()
        self._total: Numbers = np.zeros(length, np.uint64)

    def roster(self, adverts: Mapping[str, bytes]) -> bytes:
        """UserObjects adverts: the roster, in the same order, for everybody in it."""
        good = self._good(adverts, adverts, self._advert)
        needed = max(LEAST, self.threshold or 0)
        if len(good) < needed:
            raise TooFewParticipants(f"{len(good)} clients take part, and a secure sum of them needs {needed}")
        self._roster = KeyRoster.create(self.session, self.threshold or majority(len(good)), good)
        return self._roster.message

    def deliver(self, shares: Mapping[str, bytes]) -> dict[str, bytes]:
        """UserObjects sealed shares: for each who sent some a message with those that are for it."""
        good = self._good(shares, self._roster.adverts, self._shares)
        self._roster.insist_on_enough(good.keys(), "sent shares")
        self._sharing = frozenset(good)
        outbox = {to: {name: sent[to].hex() for name, sent in good.items() if name != to} for to in good}
        return {to: write("delivery", self.session, shares=messages) for to, messages in outbox.items()}

    def survivors(self, masked: Mapping[str, Numbers]) -> bytes:
        """UserObjects masked vectors: whose came, for each of them. A vector that comes later does not count."""
        good = self._good(masked, self._sharing, self._vector)
        self._roster.insist_on_enough(good.keys(), "sent their numbers")
        self._surviving = frozenset(good)
        self._total = np.zeros(self.length, np.uint64)
        for vector in good.values():
            self._total += vector
        return write("survivors", self.session, names=sorted(good))

    def total(self, revealed: Mapping[str, bytes]) -> Numbers:
        """UserObjects revealed shares: the sum of the survivors' numbers."""
        good = self._good(revealed, self._surviving, self._revealed)
        roster, needed = self._roster, self._roster.threshold
        if len(good) < needed:
            raise TooFewParticipants(
                f"{len(good)} of {len(self._surviving)} clients revealed shares, and {needed} must"
            )
        helpers = sorted(good, key=roster.positions.__getitem__)[:needed]
        weights = interpolation([roster.positions[name] + 1 for name in helpers])
        total = self._total.copy()
        for name in sorted(self._sharing):
            secret, advert = join([good[helper][name] for helper in helpers], weights), roster.adverts[name]
            survived = name in self._surviving
            if (promise(secret) != advert.promise) if survived else (public(secret) != advert.pairs):
                raise ProtocolError(f"the shares that {', '.join(helpers)} revealed do not give the secret of {name}")
            if survived:
                add_mask(total, own_mask(secret), -1)
            else:
                for survivor in self._surviving:  # what the lost client would have added cancels the survivor's part
                    add_mask(total, *pair_mask(roster, name, secret, survivor))
        return total

    # --- answers

    def _good(self, answers: Mapping[str, T], asked: Collection[str], check: Callable[[str, T], U]) -> dict[str, U]:
        """The answers of those who were asked that stand the check."""
        good = {}
        for name, answer in answers.items():
            try:
                if name not in asked:
                    raise ProtocolError(f"{name} was not asked in this step of {self.session}")
                good[name] = check(name, answer)
            except ProtocolError as reason:
                self.refused[name] = str(reason)
        return good

    def _advert(self, name: str, message: bytes) -> Advert:
        advert = Advert.read(read("advert", self.session, message))
        for key in (advert.pairs, advert.seals):
            agreed(ANY, key)  # a key that is none would stop the others
        if self.verify and not self.verify(name, advert.signed(self.session, name), advert.signature):
            raise ProtocolError(f"the keys of {name} are not signed by {name}")
        return advert

    def _shares(self, name: str, message: bytes) -> dict[str, bytes]:
        shares = read_shares(read("shares", self.session, message))
        if shares.keys() != self._roster.adverts.keys() - {name}:
            raise ProtocolError(f"{name} sent shares for others than are in the roster")
        return shares

    def _vector(self, name: str, vector: Numbers) -> Numbers:
        if vector.dtype != np.uint64 or vector.shape != (self.length,):
            raise ProtocolError(f"{name} sent {vector.dtype} {list(vector.shape)} and not uint64 [{self.length}]")
        return vector

    def _revealed(self, name: str, message: bytes) -> dict[str, bytes]:
        shares = read_shares(read("revealed", self.session, message), SHARE)
        if shares.keys() != self._sharing:
            raise ProtocolError(f"{name} revealed shares of others than it was asked for")
        return shares
