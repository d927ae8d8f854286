"""A client's part in secure sums: its hidden uploads stay on its disk, and leave it masked.

Whatever is answered is on disk first, so that any process can answer the next message, and none answers otherwise than
one before it did. The same numbers are summed with the same clients only: two sums that differ by one client tell it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
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
from fedbraid.deploy.secagg.protocol import Session, read_names
from fedbraid.deploy.secagg.protocol import read as read_secure
from fedbraid.deploy.secure_policy import MODEL


@dataclass(frozen=True)
class LocalIdentity:
    """Who answers: a client's name and, if it has one, its long-term key with those of the others."""

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
    """Its numbers times the weights that it is told, one after the other, masked."""
    at, client = _known(home, message)
    uploads, parts = _hidden(home, at), message.payload.get("parts")
    if not isinstance(parts, list) or not parts:
        raise MessageRefused("it is asked for a sum of numbers that are not here")
    numbers = FixedPoint(message.number("bound", 1e-6), message.count("clients", 1))
    encoded = []
    for part in parts:
        key, weight = part if isinstance(part, list) and len(part) == 2 else (None, None)
        if not isinstance(key, str) or key not in uploads or not isinstance(weight, int | float):
            raise MessageRefused(f"it is asked for a sum of {str(key)[:40]!r}, which is not to be summed")
        if key not in MODEL and weight != 1:
            raise MessageRefused(f"it is asked for a weighted sum of {key!r}, of which only plain ones are to be had")
        encoded.append(numbers.encode(uploads[key].double().numpy(), weight))
    masked = client.mask(_text(message, "delivery"), np.concatenate(encoded))
    _keep(home, message.round, at, client)
    whole = torch.from_numpy(masked.view(np.int64))  # modulo 2⁶⁴ as torch and files know it
    return Message("answer", message.run, message.round, {}, {"masked": whole})


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
    # The memory is on disk before the shares leave: a client killed in between must not forget what it revealed.
    if kind == "train":
        home.keep_summed_ever(digest_of(_hidden(home, at)), {"names": names})
    home.keep_summed(at, {"names": names, "kind": kind})
    _keep(home, message.round, at, client)
    return Message("answer", message.run, message.round, {"revealed": revealed.decode()})


STEPS: dict[str, Callable[[ClientHome, LocalIdentity, Message], Message]] = {
    "advert": advert,
    "share": share,
    "mask": mask,
    "reveal": reveal,
}


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
