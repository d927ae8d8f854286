"""Sessions of secure sums, their rosters and terms, and their messages: JSON, checked when it is read."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeGuard

from fedbraid.errors import UserError

LEAST = 3
"""Vectors in a sum: of a sum of two, each of the two clients would know the other's."""


class ProtocolError(UserError):
    """A refusal of a client or the server, with the reason."""


class TooFewParticipants(UserError):
    """Too many clients are missing to learn the sum."""


@dataclass(frozen=True)
class Session:
    """One sum. Keys are made anew for each; one that failed is tried again as another attempt."""

    run: str
    round: int
    what: str  # which of the round's sums it is
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.what} of round {self.round}, attempt {self.attempt}"


@dataclass(frozen=True)
class Advert:
    """A client's public keys and commitment, for all others."""

    pairs: bytes  # the public key that its pair masks come from
    seals: bytes  # the public key by which shares are sealed for it
    promise: bytes  # a digest of its own mask's secret, by which that is known again
    signature: bytes  # by its long-term key, or empty

    def signed(self, session: Session, name: str) -> bytes:
        """Return the bytes that are signed."""
        return framed("advert", json.dumps(asdict(session)), name, self.pairs, self.seals, self.promise)

    def to_dict(self) -> dict[str, str]:
        return {key: value.hex() for key, value in vars(self).items()}

    @staticmethod
    def read(fields: Any) -> Advert:
        table = _table(fields)
        pairs, seals, promise = (unhexed(table.get(key), 32) for key in ("pairs", "seals", "promise"))
        return Advert(pairs, seals, promise, unhexed(table.get("signature")))


@dataclass(frozen=True)
class KeyRoster:
    """The clients of a sum, in an order that is the same for all, and how many can unmask it."""

    threshold: int
    adverts: Mapping[str, Advert]
    message: bytes  # as everybody was told it

    @cached_property
    def positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.adverts)}

    @cached_property
    def digest(self) -> bytes:
        """Goes into every key that two clients agree on: told different things, they have none in common."""
        return hashlib.sha256(self.message).digest()

    @staticmethod
    def create(session: Session, threshold: int, adverts: Mapping[str, Advert]) -> KeyRoster:
        clients = [[name, advert.to_dict()] for name, advert in adverts.items()]
        return KeyRoster.read(session, write("roster", session, threshold=threshold, clients=clients))

    @staticmethod
    def read(session: Session, message: bytes) -> KeyRoster:
        content = read("roster", session, message)
        threshold, clients = content.get("threshold"), content.get("clients")
        if type(threshold) is not int or not isinstance(clients, list):
            raise ProtocolError("a roster must have a threshold and clients")
        adverts: dict[str, Advert] = {}
        for client in clients:
            if not isinstance(client, list) or len(client) != 2 or not isinstance(client[0], str):
                raise ProtocolError("a roster's clients must be names with adverts")
            if client[0] in adverts:
                raise ProtocolError(f"{client[0]} is twice in the roster")
            adverts[client[0]] = Advert.read(client[1])
        least, most = least_threshold(len(adverts)), len(adverts)
        if not least <= threshold <= most:
            raise ProtocolError(f"the threshold of {most} clients must be from {least} to {most}, not {threshold}")
        return KeyRoster(threshold, adverts, message)

    def insist_on_enough(self, names: Set[str], what: str) -> None:
        """Raise unless a sum over `names` hides each of them and can be unmasked."""
        needed = max(self.threshold, LEAST)
        if len(names) < needed:
            raise TooFewParticipants(
                f"{len(names)} of {len(self.adverts)} clients {what}, and a secure sum of them needs {needed}"
            )


def majority(clients: int) -> int:
    """Return the smallest number of clients such that any two groups of so many have one in common."""
    return clients // 2 + 1


def least_threshold(clients: int) -> int:
    """Return the smallest threshold that is taken: more than two thirds of the clients.

    A server that lies can tell some clients that X is lost and others that it is not. To open both secrets of X it
    needs the threshold t from each group. An honest client helps one group only, so with c colluders that help both,
    opening both takes 2 t <= n + c. With t > 2 n / 3 that is more than n / 3 colluders; a bare majority would fall to
    one.
    """
    return 2 * clients // 3 + 1


# --- messages


@dataclass(frozen=True)
class Terms:
    """The uploads that are summed and their weights: the same for all clients that mask.

    A digest of it goes into the seeds of pair masks. If a server tells clients different terms, their masks do not
    cancel, and it learns noise.
    """

    names: tuple[str, ...]
    bound: float
    clients: int  # for which the fixed-point numbers have room
    parts: tuple[tuple[str, tuple[float, ...]], ...]  # what is summed, with the weight of each of `names`
    message: bytes

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(self.message).digest()

    def weights_of(self, name: str) -> list[tuple[str, float]]:
        """Return what a client is to add up, with its weights."""
        place = self.names.index(name)
        return [(key, weights[place]) for key, weights in self.parts]

    @staticmethod
    def create(
        session: Session, names: Sequence[str], bound: float, clients: int, parts: Sequence[tuple[str, list[float]]]
    ) -> Terms:
        table = [[key, weights] for key, weights in parts]
        message = write("terms", session, names=list(names), bound=bound, clients=clients, parts=table)
        return Terms.read(session, message)

    @staticmethod
    def read(session: Session, message: bytes) -> Terms:
        content = read("terms", session, message)
        names, bound, clients, parts = (content.get(key) for key in ("names", "bound", "clients", "parts"))
        if not isinstance(names, list) or len(set(map(str, names))) < len(names):
            raise ProtocolError("the terms of a sum must name the clients, each once")
        if not _is_number(bound) or not bound >= 1e-6 or type(clients) is not int or clients < len(names):
            raise ProtocolError("the terms of a sum must say its bound, and for how many clients there is room")
        if not isinstance(parts, list) or not parts:
            raise ProtocolError("the terms of a sum must say what is summed")
        table = []
        for part in parts:
            key, weights = part if isinstance(part, list) and len(part) == 2 else (None, None)
            if not isinstance(key, str) or not isinstance(weights, list) or len(weights) != len(names):
                raise ProtocolError("the terms of a sum must have a weight for every client")
            if not all(map(_is_number, weights)):
                raise ProtocolError(f"the weights of {key[:40]!r} must be finite numbers")
            table.append((key, tuple(map(float, weights))))
        return Terms(tuple(map(str, names)), float(bound), clients, tuple(table), message)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def write(kind: str, session: Session, **content: Any) -> bytes:
    return json.dumps({"kind": kind, "session": asdict(session), **content}, separators=(",", ":")).encode()


def read(kind: str, session: Session, message: bytes) -> dict[str, Any]:
    """Parse a message of this kind and session; its fields are the caller's to check."""
    try:
        content = _table(json.loads(message))
    except (ValueError, RecursionError):
        raise ProtocolError(f"a message that should be of kind {kind!r} is not JSON") from None
    if content.get("kind") != kind:
        raise ProtocolError(f"a message should be of kind {kind!r}, not {str(content.get('kind'))[:40]!r}")
    if content.get("session") != asdict(session):
        raise ProtocolError(f"a message of kind {kind!r} is not of this sum ({session})")
    return content


def read_shares(content: Mapping[str, Any], size: int | None = None) -> dict[str, bytes]:
    """Shares by name, sealed or not."""
    return {name: unhexed(share, size) for name, share in _table(content.get("shares")).items()}


def read_names(content: Mapping[str, Any]) -> frozenset[str]:
    names = content.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ProtocolError("a message lacks a list of names")
    return frozenset(names)


def unhexed(value: Any, size: int | None = None) -> bytes:
    """Bytes that were written as hexadecimal digits."""
    try:
        found = bytes.fromhex(value)
    except (TypeError, ValueError):
        raise ProtocolError("a message lacks hexadecimal digits where they should be") from None
    if size is not None and len(found) != size:
        raise ProtocolError(f"a message has {len(found)} bytes where {size} should be")
    return found


def framed(*parts: str | bytes) -> bytes:
    """Parts behind each other, each after its length, so that no two lists give the same bytes."""
    raw = (part.encode() if isinstance(part, str) else part for part in parts)
    return b"".join(len(part).to_bytes(8, "little") + part for part in raw)


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError("a message lacks a table where it should be")
    return value
