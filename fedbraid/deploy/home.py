"""What a client keeps on its disk of one run, so that any process can answer the next letter.

    hello.letter                    what the server said first
    probe-ROUND-MARK.letter         a question before training, for what the training's letter need not say again
    answer-ROUND-MARK.letter        what was answered to the letter of that mark
    state-ROUND-MARK.safetensors    what strands keep on the client after it did what the letter of that mark asked for
    hidden-ROUND-MARK.safetensors   uploads that the server is to learn only as sums
    sum-ROUND-NUMBER.json           the client's part in the secure sum of that number, its secrets included
    summed-ROUND-MARK.json          with whom hidden uploads were summed

Files are whole or not there, and their owner's alone: models tell of the data that they were trained on. A state stays
until a later one is known to have counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from fedbraid.core.tree import Tree
from fedbraid.deploy.letters import Refused
from fedbraid.storage.files import save_tensors, write_bytes
from fedbraid.storage.locks import lock_file
from fedbraid.storage.private import private_folder

RUN = MARK = re.compile(r"[0-9a-f]{16}")
FILE = re.compile(r"(?:state|answer|probe|hidden|sum|summed)-(\d+)-[0-9a-f]{16}\.\w+")


@dataclass(frozen=True)
class At:
    """A round, and the letter that asked for it."""

    round: int
    mark: str

    def __post_init__(self) -> None:
        if not (type(self.round) is int and 0 <= self.round < 2**31):
            raise Refused(f"it names no round: {str(self.round)[:40]}")
        if not (isinstance(self.mark, str) and MARK.fullmatch(self.mark)):
            raise Refused(f"it names no letter: {str(self.mark)[:40]}")

    @staticmethod
    def read(values: Any) -> At | None:
        """As a letter tells it; None where nothing has happened yet."""
        return None if values is None else At(*(values if isinstance(values, list) and len(values) == 2 else (-1, "")))

    def told(self) -> list[Any]:
        return [self.round, self.mark]

    def __str__(self) -> str:
        return f"{self.round:06d}-{self.mark}"


class Home:
    """The folder of one run."""

    def __init__(self, folder: Path, run: str) -> None:
        if not RUN.fullmatch(run):
            raise Refused("its run has no proper mark")
        self.place = folder / run

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One letter at a time."""
        private_folder(self.place)
        with open(self.place / ".lock", "w") as lock:
            lock_file(lock.fileno(), wait=True)
            yield

    def hello(self) -> bytes | None:
        return _read(self.place / "hello.letter")

    def keep_hello(self, letter: bytes) -> None:
        if self.hello() != letter:
            write_bytes(self.place / "hello.letter", letter, secret=True)

    def answer(self, at: At) -> bytes | None:
        return _read(self.place / f"answer-{at}.letter")

    def keep_answer(self, at: At, answer: bytes) -> None:
        write_bytes(self.place / f"answer-{at}.letter", answer, secret=True)

    def probe(self, at: At) -> bytes | None:
        return _read(self.place / f"probe-{at}.letter")

    def keep_probe(self, at: At, letter: bytes) -> None:
        write_bytes(self.place / f"probe-{at}.letter", letter, secret=True)

    def state(self, at: At) -> Tree | None:
        file = self.place / f"state-{at}.safetensors"
        return load_file(file) if file.exists() else None

    def keep_state(self, at: At, state: Tree) -> None:
        save_tensors(self.place / f"state-{at}.safetensors", state, secret=True)

    def hidden(self, at: At) -> Tree | None:
        file = self.place / f"hidden-{at}.safetensors"
        return load_file(file) if file.exists() else None

    def keep_hidden(self, at: At, uploads: Tree) -> None:
        save_tensors(self.place / f"hidden-{at}.safetensors", uploads, secret=True)

    def sum(self, round: int, number: int) -> bytes | None:
        return _read(self._sum(round, number))

    def keep_sum(self, round: int, number: int, state: bytes) -> None:
        write_bytes(self._sum(round, number), state, secret=True)

    def summed(self, at: At) -> dict[str, Any] | None:
        kept = _read(self.place / f"summed-{at}.json")
        return None if kept is None else json.loads(kept)

    def keep_summed(self, at: At, summed: dict[str, Any]) -> None:
        write_bytes(self.place / f"summed-{at}.json", json.dumps(summed).encode(), secret=True)

    def _sum(self, round: int, number: int) -> Path:
        return self.place / f"sum-{At(round, f'{number:016x}')}.json"

    def tidy(self, round: int, counted: At | None) -> None:
        """Forget what came before `round`, but for the state that counted: the others never will."""
        kept = f"state-{counted}.safetensors"
        for file in self.place.iterdir():
            parts = FILE.fullmatch(file.name)
            past = parts is not None and int(parts[1]) < round
            if file.suffix == ".tmp" or (past and file.name != kept):
                file.unlink(missing_ok=True)


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
