"""A client's part in secure sums: its hidden uploads stay on its disk, and leave it masked.

Whatever is answered is on disk first, so that any process can answer the next message, and none answers otherwise than
one before it did. The same numbers are summed with the same clients only: two sums that differ by one client tell it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from fedbraid.core.tree import Tree
from fedbraid.deploy.client_draws import digest_of
from fedbraid.deploy.client_home import ClientHome, MessageRef
from fedbraid.deploy.identity import Identity
from fedbraid.deploy.messages import Message, MessageRefused
from fedbraid.deploy.secagg.fixed_point import FixedPoint
from fedbraid.deploy.secagg.participant import Participant
from fedbraid.deploy.secagg.protocol import LEAST, Session, Terms, read_names
from fedbraid.deploy.secagg.protocol import read as read_secure
from fedbraid.deploy.secure_policy import MODEL

MOST_SHARE = 0.95
"""Share of a sum's weight that one client can have; the rest hides it no more."""


@dataclass(frozen=True)
class LocalIdentity:
    """The client's name and, if it has one, its long-term key with those of the others."""

    name: str
    identity: Identity | None = None


def create_advert(home: ClientHome, me: LocalIdentity, message: Message, of: str, at: MessageRef) -> dict[str, Any]:
    """The client's keys for a sum of what it made of the message `at`, of kind `of`."""
    token = message.count("sum")
    client = _client(home, message.round, token)
    if client is None:
        client = Participant(Session(message.run, message.round, of, token), me.name)
        _keep(home, message.round, at, client)
    summed = _summed_before(home, at, of)
    _refuse_second_question(home, at, of)
    signed = client.advert(me.identity.sign if me.identity else None)
    return {"advert": signed.decode()} | ({"with": summed["names"]} if summed else {})


def advert(home: ClientHome, me: LocalIdentity, message: Message) -> Message:
    """New keys, after a sum that came to nothing."""
    at, of = MessageRef.read(message.payload.get("after")), message.payload.get("of")
    if at is None or not isinstance(of, str):
        raise MessageRefused("it does not say what is to be summed")
    return Message("answer", message.run, message.round, create_advert(home, me, message, of, at))


def share(home: ClientHome, me: LocalIdentity, message: Message) -> Message:
    at, client = _known(home, message)
    shares = client.share(_text(message, "roster"), me.identity.verify if me.identity else None)
    _keep(home, message.round, at, client)
    return Message("answer", message.run, message.round, {"shares": shares.decode()})


def mask(home: ClientHome, me: LocalIdentity, message: Message) -> Message:
    """Answer with the client's numbers times the weights of the terms, one after the other, masked."""
    at, client = _known(home, message)
    uploads = _hidden(home, at)
    terms = Terms.read(client.session, _text(message, "terms"))
    if me.name not in terms.names:
        raise MessageRefused("the terms of the sum are for other clients")
    check_terms(terms, frozenset(uploads))
    numbers = FixedPoint(terms.bound, terms.clients)
    encoded = [numbers.encode(uploads[key].double().numpy(), weight) for key, weight in terms.weights_of(me.name)]
    masked = client.mask(_text(message, "delivery"), np.concatenate(encoded), terms)
    _keep(home, message.round, at, client)
    whole = torch.from_numpy(masked.view(np.int64))  # modulo 2⁶⁴ as torch and files know it
    unopened = {"unopened": list(client.unopened)} if client.unopened else {}
    return Message("answer", message.run, message.round, unopened, {"masked": whole})


def check_terms(terms: Terms, uploads: frozenset[str]) -> None:
    """Refuse terms under which the sum would tell a single client's numbers.

    A server that gives all clients but one a weight of zero, or next to it, would learn that one's model. So a weighted
    sum is refused where fewer than three clients have weight, where one has nearly all of it, and where weights have
    different signs, by which some could cancel the others.
    """
    for place, (key, weights) in enumerate(terms.parts):
        if key not in uploads:
            raise MessageRefused(f"it is asked for a sum of {key[:40]!r}, which is not to be summed")
        if key not in MODEL and set(weights) != {1.0}:
            raise MessageRefused(f"it is asked for a weighted sum of {key!r}, of which only plain ones are to be had")
        _check_weights(weights)
        for other, others in terms.parts[:place]:
            if other == key:
                _check_pair(weights, others)


def _check_weights(weights: Sequence[float]) -> None:
    heavy = [weight for weight in weights if weight]
    if len(heavy) < LEAST:
        raise MessageRefused(f"it is asked for a sum in which {len(heavy)} clients count, and at least {LEAST} must")
    if min(heavy) < 0 < max(heavy):
        raise MessageRefused("it is asked for a sum in which weights have different signs")
    if (share := max(map(abs, heavy)) / abs(sum(heavy))) > MOST_SHARE:
        raise MessageRefused(f"it is asked for a sum in which one client has {share:.1%} of the weight")


def _check_pair(weights: Sequence[float], others: Sequence[float]) -> None:
    """Refuse two sums of the same numbers whose difference would tell a single client's.

    w - c v are the weights of a difference. For the c that lets most clients cancel, at least three must be left, or
    none; and none of them may have nearly all of it.
    """
    for c in {w / v for w, v in zip(weights, others, strict=True) if v}:
        rest = [abs(w - c * v) for w, v in zip(weights, others, strict=True)]
        left = [value for value in rest if value > 1e-6 * max(map(abs, weights))]
        if left and (len(left) < LEAST or max(left) > MOST_SHARE * sum(left)):
            raise MessageRefused("it is asked for two sums whose difference tells the numbers of one client or two")


def reveal(home: ClientHome, me: LocalIdentity, message: Message) -> Message:
    at, client = _known(home, message)
    survivors = _text(message, "survivors")
    names = sorted(read_names(read_secure("survivors", client.session, survivors)))
    kind = client.session.what
    summed = _summed_before(home, at, kind)
    if summed is not None and summed["names"] != names:
        raise MessageRefused("its numbers of this round were summed with other clients before")
    _refuse_second_question(home, at, kind)
    revealed = client.reveal(survivors)
    weights = _weights(client, names)
    if summed is not None and not _same_weights(summed.get("weights"), weights):
        raise MessageRefused("its numbers of this round were summed with other weights before")
    # The memory is on disk before the shares leave: a client killed in between must not forget what it revealed.
    if kind == "train":
        home.keep_summed_ever(digest_of(_hidden(home, at)), {"names": names, "weights": weights})
    home.keep_summed(at, {"names": names, "kind": kind, "weights": weights})
    _keep(home, message.round, at, client)
    return Message("answer", message.run, message.round, {"revealed": revealed.decode()})


STEPS: dict[str, Callable[[ClientHome, LocalIdentity, Message], Message]] = {
    "advert": advert,
    "share": share,
    "mask": mask,
    "reveal": reveal,
}


def _weights(client: Participant, names: Sequence[str]) -> list[Any]:
    """Return the weights of a sum over those who are left, as shares of all: what a second sum is compared by."""
    shares = []
    for key, weights in client.parts:
        left = {name: weight for name, weight in zip(client.weighed, weights, strict=True) if name in names}
        total = sum(left.values())
        shares.append([key, [left[name] / total if total else 0.0 for name in sorted(left)]])
    return sorted(shares)


def _same_weights(one: Any, other: list[Any]) -> bool:
    """Return whether two sums have the same weights, up to rounding; a record of an earlier version has none."""
    if one is None:
        return True
    if [key for key, _ in one] != [key for key, _ in other]:
        return False
    pairs = [(a, b) for (_, x), (_, y) in zip(one, other, strict=True) for a, b in zip_longest(x, y, fillvalue=-1.0)]
    return all(abs(a - b) <= 1e-6 for a, b in pairs)


def _hidden(home: ClientHome, at: MessageRef) -> Tree:
    uploads = home.hidden(at)
    if uploads is None:
        raise MessageRefused("it is asked for a sum of numbers that are not here")
    return uploads


def _summed_before(home: ClientHome, at: MessageRef, kind: str) -> dict[str, Any] | None:
    """Return with whom these numbers were summed, in this run or in an earlier one.

    Label counts before training are the same in every round, so only what training led to is remembered across rounds.
    """
    ever = home.summed_ever(digest_of(_hidden(home, at))) if kind == "train" else None
    return home.summed(at) or ever


def _refuse_second_question(home: ClientHome, at: MessageRef, kind: str) -> None:
    """Refuse a sum of what another question of the same round led to.

    A server that changes a digit of its question gets other numbers from the same model and data. Two sums of them over
    cohorts that differ by one client would still tell that client's numbers, nearly. So at most one question of each
    round and kind is summed.
    """
    for other, summed in home.summed_in(at.round).items():
        if other != at.digest and summed.get("kind") == kind:
            raise MessageRefused(f"its numbers of round {at.round + 1} were summed for another question before")


def _known(home: ClientHome, message: Message) -> tuple[MessageRef, Participant]:
    kept = home.sum(message.round, message.count("sum"))
    if kept is None:
        raise MessageRefused("it knows nothing of this sum")
    at, state = json.loads(kept)
    return MessageRef(*at), Participant.restored(state.encode())


def _client(home: ClientHome, round: int, token: int) -> Participant | None:
    kept = home.sum(round, token)
    return Participant.restored(json.loads(kept)[1].encode()) if kept else None


def _keep(home: ClientHome, round: int, at: MessageRef, client: Participant) -> None:
    home.keep_sum(round, client.session.attempt, json.dumps([at.to_list(), client.state().decode()]).encode())


def _text(message: Message, key: str) -> bytes:
    value = message.payload.get(key)
    if not isinstance(value, str):
        raise MessageRefused(f"it lacks {key!r}")
    return value.encode()
