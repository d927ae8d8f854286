"""The server's side of secure sums over one question's answers (`secagg`), within the rounds of a federation.

One exchange deals out shares, one brings the masked numbers and one reveals what unmasks their sum; clients' keys come
with the answers before. Everything that the round needs is one vector. A client that is lost before it masked leaves a
smaller cohort, whose weights are others: the round is gone through again (`CohortShrunk`), and what the others masked
is used if their weights only grew in proportion; otherwise nothing of it was learned, and they mask anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.tree import Tree
from fedbraid.deploy.channel import Channel
from fedbraid.deploy.client_home import MessageRef
from fedbraid.deploy.messages import ROOM, Message, MessageRefused, Shapes
from fedbraid.deploy.secagg.aggregator import Aggregator
from fedbraid.deploy.secagg.fixed_point import FixedPoint
from fedbraid.deploy.secagg.protocol import ProtocolError, Session, Terms, TooFewParticipants, least_threshold, majority
from fedbraid.deploy.secure_policy import LEAST, MODEL, CohortShrunk, RoundNotCounted, SecurePolicy, new_number
from fedbraid.errors import UserError

FOR_EACH = 2048
"""Bytes of a message that it may have for every client of the cohort: keys and shares."""
TRIES = 3
"""How often those who are to reveal shares are asked."""

log = logging.getLogger("fedbraid")

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class SumPart:
    """One sum of the many that are learned together."""

    key: str
    weights: Tensor  # of those who mask


@dataclass(frozen=True, eq=False)
class Masked:
    """The masked numbers of the clients that are left."""

    survivors: bytes
    parts: list[SumPart]


@dataclass(eq=False)
class MaskedSession:
    """The hidden uploads of those who answered one question."""

    channel: Channel
    round: int
    kind: str
    like: Tree  # one client's
    asked: Mapping[str, MessageRef]  # what they answered
    settings: SecurePolicy
    plain: bool  # whether the plain sum of models is needed beside the weighted one
    lose: Callable[[Mapping[str, str]], None]  # told who is lost and why; an error where too few are left
    names: list[str]  # of those who are left, in the cohort's order
    bytes_up: int = 0
    _server: Aggregator | None = None
    _threshold: int = 0
    _delivery: Mapping[str, bytes] = field(default_factory=dict)
    _masked: Masked | None = None
    _known: list[tuple[SumPart, Tensor]] = field(default_factory=list)

    @property
    def known(self) -> bool:
        """Return whether a sum was revealed."""
        return bool(self._known)

    def begin(self, number: int, adverts: Mapping[str, str]) -> None:
        """Share out secrets among those who sent keys; who does not is lost."""
        self._masked, self.bytes_up = None, self.bytes_up + sum(map(len, adverts.values()))
        self._threshold = max(self.settings.threshold, least_threshold(len(adverts)))
        session = Session(self.channel.membership.run, self.round, self.kind, number)
        server = self._server = Aggregator(session, 0, threshold=self._threshold, verify=self.settings.verify)
        roster = _step(lambda: server.roster({name: text.encode() for name, text in adverts.items()}))
        met = {name: {"roster": roster.decode()} for name in adverts if name not in server.refused}
        shares, refused = self._texts("share", number, met, "shares")
        self._left(shares, refused)
        self._delivery = _step(lambda: server.deliver(shares))
        self._left(self._delivery, {})

    def go_on_with(self, names: Collection[str], why_not_others: str) -> None:
        self._left(names, dict.fromkeys(self.names, why_not_others))

    def sum(self, key: str, weights: Tensor) -> Tensor:
        """As `Replies` has it, over those who are left."""
        found = self._found(key, weights)
        if found is None:
            self._learn(self._wanted(key, weights))
            found = self._found(key, weights)
            assert found is not None
        return found

    def _found(self, key: str, weights: Tensor) -> Tensor | None:
        if not self.like[key].numel():  # buffers of a network that has none
            return self.like[key]
        for part, total in self._known:
            times = ratio(weights, part.weights) if part.key == key else None
            if times is not None:
                return (times * total).to(self.like[key])
        return None

    def _wanted(self, key: str, weights: Tensor) -> list[SumPart]:
        """With a sum that is asked for, all others that will be."""
        ones = torch.ones_like(weights)
        if key not in MODEL and ratio(weights, ones) is None:
            raise UserError(f"{key} is said to be used as a plain sum, but the server weighs it; change its `sum_only`")
        wanted = [SumPart(other, ones) for other in self.like if other not in MODEL]
        if key in MODEL:
            wanted = [*(SumPart(k, weights) for k in ("model", "buffers")), *wanted]
            if self.plain and ratio(weights, ones) is None:
                wanted.append(SumPart("model", ones))
        return [part for part in wanted if self._found(part.key, part.weights) is None]

    def _learn(self, wanted: list[SumPart]) -> None:
        masked = self._masked
        if masked is None or not all(any(_serves(have, part) for have in masked.parts) for part in wanted):
            masked = self._mask(wanted)
        server = self._server
        assert server is not None
        payload, number, revealed = masked.survivors.decode(), server.session.attempt, dict[str, bytes]()
        for again in range(TRIES):
            time.sleep(self.channel.pause if again else 0)
            missing = {name: {"survivors": payload} for name in self.names if name not in revealed}
            more, refused = self._texts("reveal", number, missing, "revealed")
            revealed |= more
            if len(revealed) >= self._threshold:
                break
        else:
            self._left(revealed, refused)
        total = _step(lambda: server.total(revealed))
        for name, reason in server.refused.items():
            log.warning(
                "round %d: %s; its numbers count", self.round + 1, reason if name in reason else f"{name}: {reason}"
            )
        summed = FixedPoint(self.settings.bound, self._clients).decode(total)
        sizes = [self.like[part.key].numel() for part in masked.parts]
        for part, values in zip(masked.parts, np.split(summed, np.cumsum(sizes)[:-1]), strict=True):
            shaped = torch.from_numpy(values).reshape(self.like[part.key].shape)
            self._known.append((part, shaped.to(part.weights.device)))
        self._server = self._masked = None

    @property
    def _clients(self) -> int:
        """The number of clients that may have masked."""
        return len(self._delivery)

    def _mask(self, wanted: list[SumPart]) -> Masked:
        if self._server is None or self._masked is not None:
            self._begin_anew()
        server, length = self._server, sum(self.like[part.key].numel() for part in wanted)
        assert server is not None
        weights = [(part.key, [float(weight) for weight in part.weights]) for part in wanted]
        terms = Terms.create(server.session, self.names, self.settings.bound, self._clients, weights)
        server.length, server.terms, told = length, terms.digest, terms.message.decode()
        payload = {name: {"delivery": self._delivery[name].decode(), "terms": told} for name in self.names}
        due = {"masked": torch.zeros((), dtype=torch.int64).expand(length)}
        number = server.session.attempt
        answers, refused = self._ask("mask", number, payload, _masked, due)
        came = {name: vector for name, (vector, _) in answers.items()}
        self.bytes_up += 8 * length * len(came)
        self._lose_unopened({name: unopened for name, (_, unopened) in answers.items()})
        positions = torch.tensor(
            [position for position, name in enumerate(self.names) if name in came], dtype=torch.int64
        )
        lost = self._left(came, refused)
        survivors = _step(lambda: server.survivors({name: v.numpy().view(np.uint64) for name, v in came.items()}))
        masked = Masked(survivors, [SumPart(p.key, p.weights[positions.to(p.weights.device)]) for p in wanted])
        if lost:
            self._masked = masked
            raise CohortShrunk
        return masked

    def _lose_unopened(self, unopened: Mapping[str, frozenset[str]]) -> None:
        """Go on without clients whose shares too few others could open: their masks could not be taken off.

        A few complaints evict nobody, or one client could evict another by complaining. Nothing has been unmasked yet,
        so the others mask anew with new keys.
        """
        lost = {}
        for name in self.names:
            complaining = sorted(other for other, names in unopened.items() if name in names)
            if complaining and len(unopened) - len(complaining) < self._threshold:
                lost[name] = f"the shares that it sent could not be opened by {', '.join(complaining)}"
        if lost:
            self._server = None
            self._left([name for name in self.names if name not in lost], lost)
            raise CohortShrunk

    def _begin_anew(self) -> None:
        number = new_number()
        asked = {name: {"after": self.asked[name].to_list(), "of": self.kind} for name in self.names}
        adverts, refused = self._ask("advert", number, asked, lambda answer: _text(answer, "advert"), {})
        lost = self._left(adverts, refused)
        before = len(self.names)
        self.begin(number, adverts)
        if lost or len(self.names) < before:
            raise CohortShrunk

    def _left(self, names: Collection[str], why: Mapping[str, str]) -> bool:
        """Go on with those of `names`; whether that are fewer."""
        reasons = (self._server.refused if self._server else {}) | dict(why)
        lost = {name: reasons.get(name, "it did not answer") for name in self.names if name not in names}
        if lost and self._known:
            self.lose(lost)
            raise RoundNotCounted("clients were lost between two sums, which are to be over the same")
        if lost:
            self.names = [name for name in self.names if name in names]
            self.lose(lost)
        return bool(lost)

    def _texts(
        self, kind: str, number: int, payload: Mapping[str, dict[str, Any]], key: str
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """A step of the protocol: what the answers have under that name, and why others have nothing."""
        texts, refused = self._ask(kind, number, payload, lambda answer: _text(answer, key), {})
        self.bytes_up += sum(map(len, texts.values()))
        return {name: text.encode() for name, text in texts.items()}, refused

    def _ask(
        self, kind: str, number: int, payload: Mapping[str, dict[str, Any]], take: Callable[[Message], T], due: Shapes
    ) -> tuple[dict[str, T], dict[str, str]]:
        run, here = self.channel.membership.run, self.channel.here()
        messages = {
            name: Message(kind, run, self.round, {"sum": number} | more).to_bytes()
            for name, more in payload.items()
            if name in here
        }
        taken, refused = self.channel.ask(messages, self.round, due, take, ROOM + FOR_EACH * len(payload))
        return taken, refused | {name: self.channel.why_not_here(name) for name in payload if name not in here}


def summed_before(payload: Mapping[str, Any]) -> frozenset[str]:
    """With whom clients' numbers were summed before, by a server that was then killed: they do it again with the same.

    Each tells with whom, and most of those must agree: with fewer nothing was learned.
    """
    each = [frozenset(map(str, names)) for names in payload.values() if isinstance(names, list)]
    return next(
        (names for names in each if each.count(names) >= majority(len(names)) and len(names) >= LEAST), frozenset()
    )


def ratio(one: Tensor, other: Tensor) -> float | None:
    """The number that `one` is a multiple of `other` by, up to rounding, or None."""
    a, b = one.double(), other.double()
    most = int(b.abs().argmax())
    times = float(a[most] / b[most]) if b[most] else 0.0
    close = 16 * torch.finfo(one.dtype).eps * float(a.abs().max())
    return times if float((a - times * b).abs().max()) <= close else None


def _serves(have: SumPart, part: SumPart) -> bool:
    return (
        have.key == part.key
        and len(have.weights) == len(part.weights)
        and ratio(part.weights, have.weights) is not None
    )


def _masked(answer: Message) -> tuple[Tensor, frozenset[str]]:
    """Read a masked vector, and whose shares its sender could not open."""
    unopened = answer.payload.get("unopened", [])
    if not isinstance(unopened, list) or not all(isinstance(name, str) for name in unopened):
        raise MessageRefused("it does not say whose shares it could not open")
    return answer.tensors["masked"], frozenset(unopened)


def _text(answer: Message, key: str) -> str:
    text = answer.payload.get(key)
    if not isinstance(text, str):
        raise MessageRefused(f"it lacks {key!r}")
    return text


def _step(step: Callable[[], T]) -> T:
    """A step of the protocol, without which the round does not count."""
    try:
        return step()
    except (ProtocolError, TooFewParticipants) as few:
        raise RoundNotCounted(str(few)) from few
