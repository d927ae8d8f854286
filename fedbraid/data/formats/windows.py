"""Windows of characters, each with the character that follows: cut from texts, or read as somebody cut them.

Windows go straight to where they will lie: those of one role, or of one part of a file, are all that is in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedbraid.data.cache import ArrayWriter
from fedbraid.data.formats.vocabulary import Names
from fedbraid.errors import UserError

CHARACTERS = f"\n !\"&'(),-.{digits}:;>?{ascii_uppercase}[]{ascii_lowercase}}}"
"""LEAF's 80, in its order. A character's class is its place here; its token is one more, since 0 is padding."""
LENGTH = 80
TRAIN, TEST, NEITHER = 0, 1, 2

Indices = NDArray[np.int64]
Tokens = NDArray[np.uint8]

TOKEN_OF = np.zeros(128, dtype=np.uint8)
TOKEN_OF[[ord(character) for character in CHARACTERS]] = np.arange(1, len(CHARACTERS) + 1)


@dataclass(frozen=True)
class Choice:
    """A choice of windows: every `stride`-th, at most so many of a role, the last `test_share` for testing."""

    stride: int
    max_windows: int | None
    test_share: float

    def starts(self, count: int) -> Indices:
        """Return the windows' first positions in a text that has room for `count` of them."""
        starts = np.arange(0, count, min(self.stride, max(1, count)))  # numpy's whole numbers have an end
        if self.max_windows is None or len(starts) <= self.max_windows:
            return starts
        return starts[np.arange(self.max_windows) * len(starts) // self.max_windows]

    def by_time(self, count: int) -> tuple[Indices, Indices]:
        """Return the first positions of training and of test windows, which share no character."""
        starts = self.starts(count)
        train = starts[: max(1, int((1 - self.test_share) * len(starts)))]
        test = starts[starts >= train[-1] + LENGTH]
        return (train, test) if len(test) else (starts, test)


@dataclass(frozen=True)
class WindowBlock:
    """Some windows as a file holds them."""

    where: str  # the file, for sentences about it
    part: int | None  # TRAIN or TEST, where the file says so
    roles: Sequence[str]
    x: Sequence[str]
    y: Sequence[str]


def cut(writer: ArrayWriter, where: str, texts: Iterable[tuple[str, str]], choice: Choice) -> None:
    """Cuts windows from what each role says; roles who say too little for one are left out."""
    spoken = [tokens(f"{where}: role {role!r}", text) for role, text in texts if len(text) > LENGTH]
    planned = [choice.by_time(len(text) - LENGTH) for text in spoken]
    for half in (TRAIN, TEST):
        space = _Space(writer, half, sum(len(plan[half]) for plan in planned), where)
        for role, (text, plan) in enumerate(zip(spoken, planned, strict=True)):
            starts = plan[half]
            space.add(sliding_window_view(text, LENGTH)[starts], text[starts + LENGTH], role)


def collect(writer: ArrayWriter, blocks: Callable[[], Iterable[WindowBlock]], choice: Choice) -> None:
    """Takes windows that are cut already. They are read twice: to count and choose, then to take."""
    names, roles, parts = Names(), array("i"), array("b")
    where = ""
    for block in blocks():
        where = block.where
        roles.extend(map(names.number, block.roles))
        parts.extend([NEITHER if block.part is None else block.part] * len(block.roles))
    role = np.array(roles, dtype=np.int32)
    half_of = _halves(role, np.array(parts), choice)
    samples_writer = [_Space(writer, half, int((half_of == half).sum()), where) for half in (TRAIN, TEST)]
    at = 0
    for block in blocks():
        here = slice(at, at + len(block.x))
        x, y = _tokens_of(block)
        for half, space in enumerate(samples_writer):
            taken = half_of[here] == half
            space.add(x[taken], y[taken], role[here][taken])
        at = here.stop


def tokens(where: str, text: str) -> Tokens:
    try:
        numbers = TOKEN_OF[np.frombuffer(text.encode("ascii"), dtype=np.uint8)]
    except UnicodeEncodeError as error:
        raise UserError(f"{where} has {text[error.start]!r}, which is not among LEAF's 80 characters") from None
    if not numbers.all():
        raise UserError(f"{where} has {text[int(numbers.argmin())]!r}, which is not among LEAF's 80 characters")
    return numbers


def _tokens_of(block: WindowBlock) -> tuple[Tokens, Tokens]:
    for name, values, length in (("x", block.x, LENGTH), ("y", block.y, 1)):
        for value in values:
            if not isinstance(value, str) or len(value) != length:
                raise UserError(f"{block.where} has {value!r} for {name}; it must be a text of length {length}")
    x, y = (tokens(block.where, "".join(values)) for values in (block.x, block.y))
    return x.reshape(-1, LENGTH), y


def _halves(roles: NDArray[np.int32], parts: NDArray[np.int8], choice: Choice) -> NDArray[np.int8]:
    """TRAIN, TEST or NEITHER for each window; a role's windows come in the order of its text."""
    halves = np.full(len(roles), NEITHER, dtype=np.int8)
    order = np.argsort(roles, kind="stable")
    for own in np.split(order, np.cumsum(np.bincount(roles))[:-1]) if len(roles) else []:
        for part in (TRAIN, TEST):
            given = own[parts[own] == part]
            halves[given[choice.starts(len(given))]] = part
        free = own[parts[own] == NEITHER]
        for half, chosen in enumerate(choice.by_time(len(free)) if len(free) else ()):
            halves[free[chosen]] = half
    return halves


class _Space:
    """Room for the windows of a split, filled from the front."""

    def __init__(self, writer: ArrayWriter, half: int, size: int, where: str) -> None:
        name = ("train", "test")[half]
        if not size:
            raise UserError(
                f"{where or 'the files'} hold no windows for the {name} split; longer texts or smaller strides would do"
            )
        self._x = writer.array(f"{name}_x", (size, LENGTH), np.uint8)
        self._y = writer.array(f"{name}_y", (size,), np.int64)
        self._users = writer.array(f"{name}_users", (size,), np.int32)
        self._filled = 0

    def add(self, x: Tokens, y: Tokens, role: Any) -> None:
        here = slice(self._filled, self._filled + len(x))
        self._x[here], self._y[here], self._users[here] = x, y.astype(np.int64) - 1, role
        self._filled = here.stop
