"""A client's part in secure sums: its hidden uploads stay on its disk, and leave it masked.

Whatever is answered is on disk first, so that any process can answer the next letter, and none answers otherwise than
one before it did. The same numbers are summed with the same clients only: two sums that differ by one client tell it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedbraid.deploy.home import At, Home
from fedbraid.deploy.identity import Identity
from fedbraid.deploy.letters import Letter, Refused
from fedbraid.deploy.secrecy import MODEL
from fedbraid.deploy.secure.client import Client
from fedbraid.deploy.secure.ring import FixedPoint
from fedbraid.deploy.secure.session import Session, read_names
from fedbraid.deploy.secure.session import read as read_secure


@dataclass(frozen=True)
class Me:
    """Who answers: a client's name and, if it has one, its long-term key with those of the others."""

    name: str
    identity: Identity | None = None


def introduced(home: Home, me: Me, letter: Letter, of: str, at: At) -> dict[str, Any]:
    """The client's keys for a sum of what it made of the letter `at`, of kind `of`."""
    if home.hidden(at) is None:
        raise Refused("it is asked for a sum of numbers that are not here")
    token = letter.count("sum")
    client = _client(home, letter.round, token)
    if client is None:
        client = Client(Session(letter.run, letter.round, of, token), me.name)
        _keep(home, letter.round, at, client)
    summed = home.summed(at)
    signed = client.advert(me.identity.sign if me.identity else None)
    return {"advert": signed.decode()} | ({"with": summed["names"]} if summed else {})


def advert(home: Home, me: Me, letter: Letter) -> Letter:
    """New keys, after a sum that came to nothing."""
    at, of = At.read(letter.told.get("after")), letter.told.get("of")
    if at is None or not isinstance(of, str):
        raise Refused("it does not say what is to be summed")
    return Letter("answer", letter.run, letter.round, introduced(home, me, letter, of, at))


def share(home: Home, me: Me, letter: Letter) -> Letter:
    at, client = _known(home, letter)
    shares = client.share(_text(letter, "roster"), me.identity.verify if me.identity else None)
    _keep(home, letter.round, at, client)
    return Letter("answer", letter.run, letter.round, {"shares": shares.decode()})


def mask(home: Home, me: Me, letter: Letter) -> Letter:
    """Its numbers times the weights that it is told, one after the other, masked."""
    at, client = _known(home, letter)
    uploads, parts = home.hidden(at), letter.told.get("parts")
    if uploads is None or not isinstance(parts, list) or not parts:
        raise Refused("it is asked for a sum of numbers that are not here")
    numbers = FixedPoint(letter.number("bound", 1e-6), letter.count("clients", 1))
    encoded = []
    for part in parts:
        key, weight = part if isinstance(part, list) and len(part) == 2 else (None, None)
        if not isinstance(key, str) or key not in uploads or not isinstance(weight, int | float):
            raise Refused(f"it is asked for a sum of {str(key)[:40]!r}, which is not to be summed")
        if key not in MODEL and weight != 1:
            raise Refused(f"it is asked for a weighted sum of {key!r}, of which only plain ones are to be had")
        encoded.append(numbers.encode(uploads[key].double().numpy(), weight))
    masked = client.mask(_text(letter, "delivery"), np.concatenate(encoded))
    _keep(home, letter.round, at, client)
    whole = torch.from_numpy(masked.view(np.int64))  # modulo 2⁶⁴ as torch and files know it
    return Letter("answer", letter.run, letter.round, {}, {"masked": whole})


def reveal(home: Home, me: Me, letter: Letter) -> Letter:
    at, client = _known(home, letter)
    survivors = _text(letter, "survivors")
    names = sorted(read_names(read_secure("survivors", client.session, survivors)))
    summed = home.summed(at)
    if summed is not None and summed["names"] != names:
        raise Refused("its numbers of this round were summed with other clients before")
    revealed = client.reveal(survivors)
    _keep(home, letter.round, at, client)
    if summed is None:
        home.keep_summed(at, {"names": names})
    return Letter("answer", letter.run, letter.round, {"revealed": revealed.decode()})


STEPS: dict[str, Callable[[Home, Me, Letter], Letter]] = {
    "advert": advert,
    "share": share,
    "mask": mask,
    "reveal": reveal,
}


def _known(home: Home, letter: Letter) -> tuple[At, Client]:
    kept = home.sum(letter.round, letter.count("sum"))
    if kept is None:
        raise Refused("it knows nothing of this sum")
    at, state = json.loads(kept)
    return At(*at), Client.restored(state.encode())


def _client(home: Home, round: int, token: int) -> Client | None:
    kept = home.sum(round, token)
    return Client.restored(json.loads(kept)[1].encode()) if kept else None


def _keep(home: Home, round: int, at: At, client: Client) -> None:
    home.keep_sum(round, client.session.attempt, json.dumps([at.told(), client.state().decode()]).encode())


def _text(letter: Letter, key: str) -> bytes:
    value = letter.told.get(key)
    if not isinstance(value, str):
        raise Refused(f"it lacks {key!r}")
    return value.encode()
