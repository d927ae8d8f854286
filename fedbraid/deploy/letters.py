"""Letters between the server and its clients, as bytes: safetensors, with a JSON header in their metadata.

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
"""The one key of a letter's metadata."""
ROOM = 64 << 10
"""Bytes that a letter may have beside its numbers."""

Shapes = Mapping[str, Tensor]
"""Names, shapes and types of numbers that are due, as tensors of which nothing else counts."""


class Refused(Exception):
    """A letter that is not taken, and why: a sentence about "it"."""


class Stranger(Refused):
    """A letter to a client that has not heard of the run: the server has to say hello first."""


@dataclass(frozen=True, eq=False)
class Letter:
    """What one side tells the other."""

    kind: str  # hello, probe, train or evaluate; advert, share, mask or reveal; answer or refusal
    run: str  # the run's mark
    round: int  # counted from 0; -1 where there is none
    told: Mapping[str, Any] = field(default_factory=dict)  # plain values
    tensors: Tree = field(default_factory=dict)

    def written(self) -> bytes:
        """The same letter gives the same bytes."""
        header = {"version": VERSION, "kind": self.kind, "run": self.run, "round": self.round, "told": self.told}
        text = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return save({key: t.detach().cpu().clone().contiguous() for key, t in self.tensors.items()}, {HEADER: text})

    @property
    def question(self) -> Letter:
        """What is asked, whatever the number of the secure sum in which its answer is to take part."""
        return replace(self, told={key: value for key, value in self.told.items() if key != "sum"})

    def must_be(self, kind: str, run: str, round: int) -> None:
        """Refuse a letter of another kind, run or round. A refusal is refused for the reason that it gives."""
        if self.kind == "refusal":
            reason = "".join(c if c.isprintable() else " " for c in str(self.told.get("reason"))[:300])
            raise (Stranger if self.told.get("stranger") is True else Refused)(f"it refused: {reason}")
        if self.kind != kind:
            raise Refused(f"it is a letter of kind {self.kind!r}, not {kind!r}")
        if self.run != run:
            raise Refused("it belongs to another run")
        if self.round != round:
            raise Refused(f"it belongs to round {self.round + 1}, not {round + 1}")

    def number(self, key: str, least: float = 0) -> float:
        """A finite number that the letter tells."""
        value = self.told.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
            raise Refused(f"its {key!r} must be a number from {least:g} on, not {str(value)[:40]}")
        return value

    def count(self, key: str, least: int = 0) -> int:
        """A whole number that the letter tells; one that 64 bits can hold."""
        value = self.told.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
            raise Refused(f"its {key!r} must be a whole number from {least} on, not {str(value)[:40]}")
        return value


def read(content: bytes, most: int) -> Letter:
    """The letter that `content` is, of at most so many bytes."""
    if len(content) > most:
        raise Refused(f"it has {len(content):,} bytes, and at most {most:,} are taken")
    try:
        length = int.from_bytes(content[:8], "little")
        outer = json.loads(content[8 : 8 + length], parse_constant=_no_number)
        header = json.loads(outer["__metadata__"][HEADER], parse_constant=_no_number)
        tensors = load(content)
        kind, run, round, told = (header[key] for key in ("kind", "run", "round", "told"))
        version = header["version"]
    except Exception as error:  # there are many ways to be malformed
        raise Refused(f"it is no well-formed letter ({type(error).__name__})") from error
    if version != VERSION:
        raise Refused(f"it is written in version {str(version)[:20]} of letters, not {VERSION}")
    if not (isinstance(kind, str) and isinstance(run, str) and type(round) is int and isinstance(told, dict)):
        raise Refused("it is no well-formed letter (its header has the wrong types)")
    return Letter(kind, run, round, told, tensors)


def mark(content: bytes) -> str:
    """What tells a letter from every other one."""
    return hashlib.sha256(content).hexdigest()[:16]


def check_tensors(tensors: Tree, due: Shapes) -> None:
    """Refuse tensors of other names, shapes or types than are due, and numbers that are not finite."""
    for key in due:
        if key not in tensors:
            raise Refused(f"it lacks {key!r}")
    for key, tensor in tensors.items():
        if key not in due:
            raise Refused(f"it has {key[:40]!r}, which was not asked for")
        if tensor.shape != due[key].shape:
            raise Refused(f"its {key!r} has the shape {list(tensor.shape)}, not {list(due[key].shape)}")
        if tensor.dtype != due[key].dtype:
            raise Refused(f"its {key!r} holds {_plain(tensor.dtype)}, not {_plain(due[key].dtype)}")
    check_finite(tensors)


def check_finite(tensors: Tree) -> None:
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise Refused(f"its {key[:40]!r} has numbers that are not finite")


def at_most(due: Shapes, room: int = ROOM) -> int:
    """Bytes of a letter that brings what is due."""
    return nbytes(dict(due)) + room


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in JSON")
