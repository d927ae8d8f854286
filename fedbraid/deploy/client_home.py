"""Files that a client keeps of one run, so that any process can answer the next message.

    hello.letter                    what the server said first
    probe-ROUND-MARK.letter         the probe before training, whose tensors the training message need not repeat
    answer-ROUND-MARK.letter        the answer to the message whose digest is MARK
    state-ROUND-MARK.safetensors    client state of the strands after the work that this message asked for
    hidden-ROUND-MARK.safetensors   uploads that the server is to learn only as sums
    sum-ROUND-NUMBER.json           the client's part in the secure sum of that number, its secrets included
    summed-ROUND-MARK.json          with whom hidden uploads were summed
    secret                          what the client's own draws come from, where its uploads are hidden

Beside the folders of runs, `summed/DIGEST.json` says with whom uploads of that digest were summed, in whatever run.

Files are whole or not there, and their owner's alone: models tell of the data that they were trained on. A state stays
until a later one is known to have counted.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from fedbraid.core.tree import Tree
from fedbraid.deploy.messages import MessageRefused
from fedbraid.storage.files import save_tensors, write_bytes
from fedbraid.storage.locks import lock_file
from fedbraid.storage.private import private_folder

RUN = MARK = re.compile(r"[0-9a-f]{16}")
FILE = re.compile(r"(?:state|answer|probe|hidden|sum|summed)-(\d+)-[0-9a-f]{16}\.\w+")


@dataclass(frozen=True)
class MessageRef:
    """A round, and the message that asked for it."""

    round: int
    digest: str

    def __post_init__(self) -> None:
        if not (type(self.round) is int and 0 <= self.round < 2**31):
            raise MessageRefused(f"it names no round: {str(self.round)[:40]}")
        if not (isinstance(self.digest, str) and MARK.fullmatch(self.digest)):
            raise MessageRefused(f"it names no message: {str(self.digest)[:40]}")

    @staticmethod
    def read(values: Any) -> MessageRef | None:
        """As a message tells it; None where nothing has happened yet."""
        return (
            None
            if values is None
            else MessageRef(*(values if isinstance(values, list) and len(values) == 2 else (-1, "")))
        )

    def to_list(self) -> list[Any]:
        return [self.round, self.digest]

    def __str__(self) -> str:
        return f"{self.round:06d}-{self.digest}"


class ClientHome:
    """The folder of one run."""

    def __init__(self, folder: Path, run: str) -> None:
        if not RUN.fullmatch(run):
            raise MessageRefused("its run has no proper digest")
        self.folder, self.all_runs = folder / run, folder / "summed"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One message at a time."""
        private_folder(self.folder)
        with open(self.folder / ".lock", "w") as lock:
            lock_file(lock.fileno(), wait=True)
            yield

    def hello(self) -> bytes | None:
        return _read(self.folder / "hello.letter")

    def keep_hello(self, message: bytes) -> None:
        if self.hello() != message:
            write_bytes(self.folder / "hello.letter", message, secret=True)

    def answer(self, at: MessageRef) -> bytes | None:
        return _read(self.folder / f"answer-{at}.letter")

    def keep_answer(self, at: MessageRef, answer: bytes) -> None:
        write_bytes(self.folder / f"answer-{at}.letter", answer, secret=True)

    def probe(self, at: MessageRef) -> bytes | None:
        return _read(self.folder / f"probe-{at}.letter")

    def keep_probe(self, at: MessageRef, message: bytes) -> None:
        write_bytes(self.folder / f"probe-{at}.letter", message, secret=True)

    def state(self, at: MessageRef) -> Tree | None:
        file = self.folder / f"state-{at}.safetensors"
        return load_file(file) if file.exists() else None

    def keep_state(self, at: MessageRef, state: Tree) -> None:
        save_tensors(self.folder / f"state-{at}.safetensors", state, secret=True)

    def hidden(self, at: MessageRef) -> Tree | None:
        file = self.folder / f"hidden-{at}.safetensors"
        return load_file(file) if file.exists() else None

    def keep_hidden(self, at: MessageRef, uploads: Tree) -> None:
        save_tensors(self.folder / f"hidden-{at}.safetensors", uploads, secret=True)

    def sum(self, round: int, number: int) -> bytes | None:
        return _read(self._sum(round, number))

    def keep_sum(self, round: int, number: int, state: bytes) -> None:
        write_bytes(self._sum(round, number), state, secret=True)

    def summed(self, at: MessageRef) -> dict[str, Any] | None:
        kept = _read(self.folder / f"summed-{at}.json")
        return None if kept is None else json.loads(kept)

    def keep_summed(self, at: MessageRef, summed: dict[str, Any]) -> None:
        write_bytes(self.folder / f"summed-{at}.json", json.dumps(summed).encode(), secret=True)

    def summed_ever(self, digest: str) -> dict[str, Any] | None:
        """Return with whom uploads of this digest were summed, in this run or an earlier one."""
        kept = _read(self.all_runs / f"{digest}.json")
        return None if kept is None else json.loads(kept)

    def keep_summed_ever(self, digest: str, summed: dict[str, Any]) -> None:
        private_folder(self.all_runs)
        write_bytes(self.all_runs / f"{digest}.json", json.dumps(summed).encode(), secret=True)

    def summed_in(self, round: int) -> dict[str, dict[str, Any]]:
        """Return what was summed in a round: by the digest of the message that asked for it."""
        files = self.folder.glob(f"summed-{round:06d}-*.json")
        return {file.stem.rpartition("-")[2]: json.loads(file.read_bytes()) for file in files}

    def secret(self) -> bytes:
        """Return the client's secret of this run, which is made when it is first asked for."""
        file = self.folder / "secret"
        if (kept := _read(file)) is None:
            write_bytes(file, kept := secrets.token_bytes(32), secret=True)
        return kept

    def _sum(self, round: int, number: int) -> Path:
        return self.folder / f"sum-{MessageRef(round, f'{number:016x}')}.json"

    def tidy(self, round: int, counted: MessageRef | None) -> None:
        """Delete what came before `round`, but for the answer that counted and the state after it.

        Nothing is deleted unless the answer that is said to have counted is here. The server names it by the digest of
        its own question, which nobody else knows; so a forged message, or one of a server that has lost its checkpoint,
        is no reason to give up the only state that there is.
        """
        proven = counted is not None and self.answer(counted) is not None
        kept = (f"state-{counted}.safetensors", f"answer-{counted}.letter")
        for file in self.folder.iterdir():
            parts = FILE.fullmatch(file.name)
            past = proven and parts is not None and int(parts[1]) < round
            if file.suffix == ".tmp" or (past and file.name not in kept):
                file.unlink(missing_ok=True)


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
