"""The server's side of one secure sum."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from math import comb
from random import Random
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
    least_threshold,
    read,
    read_shares,
    write,
)
from fedbraid.deploy.secagg.shamir import SHARE, interpolation, join, value

ANY = bytes(range(32))
"""A private key to try others' public keys with."""

GROUPS = 500
"""Groups of helpers that are tried for one secret."""

T = TypeVar("T")
U = TypeVar("U")


def _groups(helpers: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Yield groups of helpers: all of them where they are few, else the first and random ones."""
    if comb(len(helpers), size) <= GROUPS:
        yield from combinations(helpers, size)
        return
    yield helpers[:size]
    draws = Random(0)
    for _ in range(GROUPS - 1):
        yield draws.sample(helpers, size)


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
        self.terms = b""  # the digest of what clients were told to sum
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
        self._roster = KeyRoster.create(self.session, self.threshold or least_threshold(len(good)), good)
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
        total = self._total.copy()
        for name in sorted(self._sharing):
            secret = self._secret(name, good)
            if name in self._surviving:
                add_mask(total, own_mask(secret), -1)
            else:
                for survivor in self._surviving:  # what the lost client would have added cancels the survivor's part
                    add_mask(total, *pair_mask(roster, name, secret, survivor, self.terms))
        return total

    def _secret(self, of: str, revealed: Mapping[str, Mapping[str, bytes]]) -> bytes:
        """Put together the secret of a client from the shares of others, whoever of them lies.

        What `threshold` true shares give is known again by the advert, so a wrong share shows, but not whose it is.
        Other groups of helpers are tried until one gives the secret. A client whose share was wrong for certain is
        named in `refused`, and is not asked for the next secret.
        """
        helpers = [name for name in revealed if of in revealed[name] and name not in self.refused]
        helpers.sort(key=self._roster.positions.__getitem__)
        needed = self._roster.threshold
        if len(helpers) < needed:
            raise TooFewParticipants(f"{len(helpers)} clients have shares of {of}'s secret, and {needed} must")
        found: bytes | None = None
        for attempt, group in enumerate(_groups(helpers, needed)):
            secret = self._joined(of, group, revealed)
            if secret is not None:
                found = secret
                if attempt == 0 or self._name_liars(of, group, helpers, revealed):
                    break
        if found is not None:
            return found
        raise ProtocolError(f"the shares that {', '.join(helpers)} revealed do not give the secret of {of}")

    def _joined(self, of: str, group: Sequence[str], revealed: Mapping[str, Mapping[str, bytes]]) -> bytes | None:
        """Return the secret that a group's shares give if it is the one of the advert."""
        advert = self._roster.adverts[of]
        try:
            secret = join([revealed[name][of] for name in group], interpolation(self._holders(group)))
        except ProtocolError:
            return None
        right = promise(secret) == advert.promise if of in self._surviving else public(secret) == advert.pairs
        return secret if right else None

    def _name_liars(
        self, of: str, group: Sequence[str], helpers: Sequence[str], revealed: Mapping[str, Mapping[str, bytes]]
    ) -> bool:
        """Name whose shares are not on the group's polynomial, if that is certainly the true one; return whether it is.

        Errors of two liars in a group can cancel at 0: the secret is right, the polynomial is not, and honest shares
        are not on it. Two polynomials of degree t - 1 share at most t - 1 points. Of the k shares and the secret, which
        is known to be right, the true one therefore has more than any other as long as at least (k + 1 + t) / 2 agree.
        """
        shares, holders = [revealed[name][of] for name in group], self._holders(group)
        wrong = [
            name
            for name in helpers
            if value(shares, interpolation(holders, *self._holders([name]))) != revealed[name][of]
        ]
        certain = 2 * (len(helpers) - len(wrong) + 1) >= len(helpers) + 1 + self._roster.threshold
        if certain:
            self.refused |= dict.fromkeys(wrong, f"it revealed a wrong share of {of}'s secret")
        return certain

    def _holders(self, names: Sequence[str]) -> list[int]:
        return [self._roster.positions[name] + 1 for name in names]

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
        if not shares.keys() <= self._sharing:
            raise ProtocolError(f"{name} revealed shares of others than it was asked for")
        return shares
