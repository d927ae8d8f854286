"""Messages between the server and its clients, as bytes: safetensors, with a JSON header in their metadata.

Nothing is unpickled, and nothing that arrives is believed: `read` takes apart what is well formed and no larger than it
may be, and the checks below say in one sentence what is wrong with the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from safetensors.torch import load, save
from torch import Tensor

from fedbraid.core.tree import Tree, nbytes

VERSION = 1
HEADER = "letter"
"""The one key of a message's metadata."""
ROOM = 64 << 10
"""Bytes that a message may have beside its numbers."""

Shapes = Mapping[str, Tensor]
"""Names, shapes and types of numbers that are due, as tensors of which nothing else counts."""


class MessageRefused(Exception):
    """A message that is not taken, and why: a sentence about "it"."""


class UnknownRun(MessageRefused):
    """A message to a client that has not heard of the run: the server has to say hello first."""


@dataclass(frozen=True, eq=False)
class Message:
    """A message from one side to the other."""

    kind: str  # hello, probe, train or evaluate; advert, share, mask or reveal; answer or refusal
    run: str  # the run's digest
    round: int  # counted from 0; -1 where there is none
    payload: Mapping[str, Any] = field(default_factory=dict)  # plain values
    tensors: Tree = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The same message gives the same bytes."""
        header = {"version": VERSION, "kind": self.kind, "run": self.run, "round": self.round, "told": self.payload}
        text = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return save({key: t.detach().cpu().clone().contiguous() for key, t in self.tensors.items()}, {HEADER: text})

    @property
    def question(self) -> Message:
        """The message without the number of the secure sum in which its answer takes part."""
        return replace(self, payload={key: value for key, value in self.payload.items() if key != "sum"})

    def require(self, kind: str, run: str, round: int) -> None:
        """Refuse a message of another kind, run or round. A refusal is refused for the reason that it gives."""
        if self.kind == "refusal":
            reason = "".join(c if c.isprintable() else " " for c in str(self.payload.get("reason"))[:300])
            raise (UnknownRun if self.payload.get("stranger") is True else MessageRefused)(f"it refused: {reason}")
        if self.kind != kind:
            raise MessageRefused(f"it is a message of kind {self.kind!r}, not {kind!r}")
        if self.run != run:
            raise MessageRefused("it belongs to another run")
        if self.round != round:
            raise MessageRefused(f"it belongs to round {self.round + 1}, not {round + 1}")

    def number(self, key: str, least: float = 0) -> float:
        """A finite number that the message tells."""
        value = self.payload.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
            raise MessageRefused(f"its {key!r} must be a number from {least:g} on, not {str(value)[:40]}")
        return value

    def count(self, key: str, least: int = 0) -> int:
        """A whole number that the message tells; one that 64 bits can hold."""
        value = self.payload.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
            raise MessageRefused(f"its {key!r} must be a whole number from {least} on, not {str(value)[:40]}")
        return value


def read(content: bytes, most: int) -> Message:
    """The message that `content` is, of at most so many bytes."""
    if len(content) > most:
        raise MessageRefused(f"it has {len(content):,} bytes, and at most {most:,} are taken")
    try:
        length = int.from_bytes(content[:8], "little")
        outer = json.loads(content[8 : 8 + length], parse_constant=_no_number)
        header = json.loads(outer["__metadata__"][HEADER], parse_constant=_no_number)
        tensors = load(content)
        kind, run, round, payload = (header[key] for key in ("kind", "run", "round", "told"))
        version = header["version"]
    except Exception as error:  # there are many ways to be malformed
        raise MessageRefused(f"it is no well-formed message ({type(error).__name__})") from error
    if version != VERSION:
        raise MessageRefused(f"it is written in version {str(version)[:20]} of messages, not {VERSION}")
    if not (isinstance(kind, str) and isinstance(run, str) and type(round) is int and isinstance(payload, dict)):
        raise MessageRefused("it is no well-formed message (its header has the wrong types)")
    return Message(kind, run, round, payload, tensors)


def kind_and_round(content: bytes) -> tuple[str, int]:
    """Read the kind and the round of a message for a line of the log; ("", -1) if it is not well-formed."""
    try:
        outer = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        header = json.loads(outer["__metadata__"][HEADER])
        return str(header["kind"])[:40], int(header["round"])
    except Exception:  # there are many ways to be malformed, and `read` names them
        return "", -1


def digest(content: bytes) -> str:
    """Return the digest by which a message is identified."""
    return hashlib.sha256(content).hexdigest()[:16]


def check_tensors(tensors: Tree, due: Shapes) -> None:
    """Refuse tensors of other names, shapes or types than are due, and numbers that are not finite."""
    for key in due:
        if key not in tensors:
            raise MessageRefused(f"it lacks {key!r}")
    for key, tensor in tensors.items():
        if key not in due:
            raise MessageRefused(f"it has {key[:40]!r}, which was not asked for")
        if tensor.shape != due[key].shape:
            raise MessageRefused(f"its {key!r} has the shape {list(tensor.shape)}, not {list(due[key].shape)}")
        if tensor.dtype != due[key].dtype:
            raise MessageRefused(f"its {key!r} holds {_plain(tensor.dtype)}, not {_plain(due[key].dtype)}")
    check_finite(tensors)


def check_finite(tensors: Tree) -> None:
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise MessageRefused(f"its {key[:40]!r} has numbers that are not finite")


def at_most(due: Shapes, room: int = ROOM) -> int:
    """Bytes of a message that brings what is due."""
    return nbytes(dict(due)) + room


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in JSON")
