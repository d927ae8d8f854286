"""A client's side of one secure sum."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import numpy as np

from fedbraid.deploy.secagg.fixed_point import Numbers
from fedbraid.deploy.secagg.key_agreement import Sign, Verify, agreed, derived, opened, public, sealed
from fedbraid.deploy.secagg.masks import add_mask, own_mask, pair_mask, promise
from fedbraid.deploy.secagg.protocol import (
    LEAST,
    Advert,
    KeyRoster,
    ProtocolError,
    Session,
    Terms,
    framed,
    read,
    read_names,
    read_shares,
    unhexed,
    write,
)
from fedbraid.deploy.secagg.shamir import SHARE, split


@dataclass
class Participant:
    """Answers the server's messages. Asked the same again it answers the same; asked otherwise it refuses.

    Everything secret is derived from `root`. Between two messages a participant can be serialized with `state()`, which
    must be on disk before the answer leaves: one that forgets its answer could be made to answer otherwise.
    """

    session: Session
    name: str
    root: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    roster: KeyRoster | None = field(default=None, repr=False)
    masked_with: frozenset[str] = frozenset()  # whose pair masks its numbers wear
    weighed: tuple[str, ...] = ()  # the clients of the terms
    parts: tuple[tuple[str, tuple[float, ...]], ...] = ()  # what is summed, with the weight of each of them
    unopened: tuple[str, ...] = ()  # whose shares it could not open
    held: dict[str, bytes] = field(default_factory=dict, repr=False)  # others' two shares: own secret's, pair key's
    masked: bytes = b""  # a digest of what it masked, and with whom
    survivors: frozenset[str] = frozenset()  # for whose sum it revealed shares

    def advert(self, sign: Sign | None = None) -> bytes:
        """Its public keys, signed if it has a long-term key."""
        bare = Advert(public(self._pair_key), public(self._seal_key), promise(self._own), b"")
        signature = sign(bare.signed(self.session, self.name)) if sign else b""
        return write("advert", self.session, **(bare.to_dict() | {"signature": signature.hex()}))

    def share(self, message: bytes, verify: Verify | None = None) -> bytes:
        """Told the roster: for each other client shares of this one's secrets, sealed."""
        roster = KeyRoster.read(self.session, message)
        self._insist(self.roster is None or self.roster.message == message, "it was told another roster before")
        self._insist(len(roster.adverts) >= LEAST, f"a sum of fewer than {LEAST} clients hides nobody")
        mine = roster.adverts.get(self.name)
        self._insist(mine is not None and mine.pairs == public(self._pair_key), "its keys are not in the roster")
        for name, advert in roster.adverts.items():
            if verify and not verify(name, advert.signed(self.session, name), advert.signature):
                raise ProtocolError(f"the keys of {name} are not signed by {name}")
        shares = {to: self._seal(roster, to, two).hex() for to, two in self._split(roster).items() if to != self.name}
        self.roster = roster
        return write("shares", self.session, shares=shares)

    def mask(self, message: bytes, numbers: Numbers, terms: Terms | None = None) -> Numbers:
        """UserObjects others' shares: `numbers`, masked with each who sent some."""
        if numbers.dtype != np.uint64 or numbers.ndim != 1:
            raise ValueError(f"a vector of uint64 is masked, not {numbers.dtype} with {numbers.ndim} axes")
        roster = self._told()
        sent = read_shares(read("delivery", self.session, message))
        self._insist(sent.keys() <= roster.adverts.keys() - {self.name}, "shares came from outside of the roster")
        roster.insist_on_enough(sent.keys() | {self.name}, "sent shares")
        about = terms.digest if terms else b""
        if terms is not None:
            self._insist(frozenset(terms.names) == sent.keys() | {self.name}, "the terms are for other clients")
        digest = hashlib.sha256(framed(*sorted(sent), about))
        digest.update(np.ascontiguousarray(numbers).data)
        self._insist(self.masked in (b"", digest.digest()), "it masked other numbers, or with others, before")
        self.masked, self.masked_with = digest.digest(), frozenset(sent)
        if terms is not None:
            self.weighed, self.parts = terms.names, terms.parts
        self.held, self.unopened = self._open_all(roster, sent)
        masked = numbers.copy()
        add_mask(masked, own_mask(self._own))
        for other in sent:
            add_mask(masked, *pair_mask(roster, self.name, self._pair_key, other, about))
        return masked

    def reveal(self, message: bytes) -> bytes:
        """Told whose vectors came: its shares of the survivors' own secrets and of the lost clients' pair keys."""
        roster = self._told()
        survivors = read_names(read("survivors", self.session, message))
        self._insist(bool(self.masked), "it has masked nothing yet")
        self._insist(self.survivors in (frozenset(), survivors), "it revealed shares for other survivors before")
        everybodys = self.held | {self.name: self._split(roster)[self.name]}
        self._insist(survivors <= self.masked_with | {self.name}, "survivors are named with whom it shares no mask")
        self._insist(self.name in survivors, "it is not among the survivors")
        roster.insist_on_enough(survivors, "are left")
        self.survivors = survivors
        shown = {of: two[:SHARE] if of in survivors else two[SHARE:] for of, two in everybodys.items()}
        return write("revealed", self.session, shares={of: share.hex() for of, share in shown.items()})

    # --- between messages

    def state(self) -> bytes:
        """All of it, secrets included, as JSON."""
        kept = {
            "session": asdict(self.session),
            "name": self.name,
            "root": self.root.hex(),
            "roster": self.roster.message.decode() if self.roster else "",
            "held": {name: two.hex() for name, two in self.held.items()},
            "masked": self.masked.hex(),
            "masked_with": sorted(self.masked_with),
            "weighed": self.weighed,
            "parts": self.parts,
            "survivors": sorted(self.survivors),
        }
        return json.dumps(kept).encode()

    @staticmethod
    def restored(state: bytes) -> Participant:
        """The client that `state` was taken of."""
        kept = json.loads(state)
        session = Session(**kept["session"])
        return Participant(
            session,
            kept["name"],
            unhexed(kept["root"], 32),
            KeyRoster.read(session, kept["roster"].encode()) if kept["roster"] else None,
            frozenset(kept.get("masked_with", kept["held"])),  # as a state of an earlier version has it
            tuple(kept.get("weighed", ())),
            tuple((key, tuple(weights)) for key, weights in kept.get("parts", ())),
            (),
            {name: unhexed(two, 2 * SHARE) for name, two in kept["held"].items()},
            unhexed(kept["masked"]),
            frozenset(kept["survivors"]),
        )

    # --- its secrets

    @property
    def _pair_key(self) -> bytes:
        return derived(self.root, "pair key")

    @property
    def _seal_key(self) -> bytes:
        return derived(self.root, "seal key")

    @property
    def _own(self) -> bytes:
        """The secret of the mask that it shares with nobody."""
        return derived(self.root, "own secret")

    def _split(self, roster: KeyRoster) -> dict[str, bytes]:
        """For everybody, itself included: a share of its own secret and, behind it, one of its pair key."""
        size = roster.threshold, len(roster.adverts)
        own = split(self._own, *size, derived(self.root, "shares of its own secret", roster.digest))
        key = split(self._pair_key, *size, derived(self.root, "shares of its pair key", roster.digest))
        return {name: own[position] + key[position] for name, position in roster.positions.items()}

    def _seal(self, roster: KeyRoster, to: str, two: bytes) -> bytes:
        about = framed("shares", roster.digest, self.name, to)
        return sealed(agreed(self._seal_key, roster.adverts[to].seals, about), two, about)

    def _open_all(self, roster: KeyRoster, sent: Mapping[str, bytes]) -> tuple[dict[str, bytes], tuple[str, ...]]:
        """Open others' shares; name those whose shares are not theirs, or damaged.

        Refusing to go on would let one client evict another by sending it garbage. The pair mask does not depend on the
        shares, and a secret can be put together without one holder, so this client goes on and tells the server.
        """
        held, unopened = {}, []
        for name, shares in sent.items():
            try:
                held[name] = self._open(roster, name, shares)
            except ProtocolError:
                unopened.append(name)
        return held, tuple(sorted(unopened))

    def _open(self, roster: KeyRoster, sender: str, message: bytes) -> bytes:
        about = framed("shares", roster.digest, sender, self.name)
        try:
            two = opened(agreed(self._seal_key, roster.adverts[sender].seals, about), message, about)
        except ProtocolError as reason:
            raise ProtocolError(f"shares that should be {sender}'s: {reason}") from None
        self._insist(len(two) == 2 * SHARE, f"the shares of {sender} have {len(two)} bytes, not {2 * SHARE}")
        return two

    def _told(self) -> KeyRoster:
        if self.roster is None:
            raise ProtocolError(f"{self.name} refuses ({self.session}): it was told no roster")
        return self.roster

    def _insist(self, condition: bool, otherwise: str) -> None:
        if not condition:
            raise ProtocolError(f"{self.name} refuses ({self.session}): {otherwise}")
