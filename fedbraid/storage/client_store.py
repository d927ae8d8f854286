"""Client state between rounds: allocated on first use, saved in pieces, in memory or on disk.

The saved form is a log of segments, oldest first, and a client's state is in the newest one that has it. Each
checkpoint writes one segment with the clients that changed since the last one. Segments that are mostly out of date,
or of which there are many of about the same size, are folded into it: there are never more than a few dozen, and a
state is moved a few times in its life. So a checkpoint costs what changed, whatever the number of clients, and a crash
at any instant leaves the last one whole.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedbraid.core.tree import Tree, grow, nbytes, stack
from fedbraid.storage.files import damaged, opened_tensors, save_rows

Kept = dict[str, Tree]
"""What strands keep on a client: {strand: {name: tensor}}."""

IDS = "clients"
"""The tensor of a segment that says whose states its rows are."""
CHECKS = "checks"
"""The tensor that tells whether rows are as they were: a checksum in the low 32 bits, the client's number above them.

Segments of earlier versions have none.
"""
ALIKE = 8
"""Segments of about the same size (within a power of this) that are folded into one."""
BLOCK = 64 << 20
"""Bytes of states that are moved at once."""
UNSAVED = 512 << 20
"""Bytes of unsaved states that wait in memory where the others are on disk."""


@dataclass(eq=False)
class Segment:
    """A file of states; a row is live until a later segment has its client."""

    clients: NDArray[np.int64]
    live: int = field(init=False)

    def __post_init__(self) -> None:
        self.live = len(self.clients)


class ClientStore:
    """States that strands keep on clients. `blank` is the state of a client that was never sampled.

    Several may write to one directory, each with a `mark` of its own in its files' names.
    """

    def __init__(
        self,
        blank: Kept,
        directory: Path | None = None,
        *,
        on_disk: bool = False,
        unsaved: int = UNSAVED,
        mark: str = "",
    ) -> None:
        self.blank = {strand: tree for strand, tree in blank.items() if tree}
        self.directory = directory
        self.on_disk = on_disk and directory is not None
        self.segments: dict[str, Segment] = {}  # by file name, oldest first
        self._place: dict[int, tuple[str, int]] = {}  # client -> the segment and row of its newest state in a file
        self._rows: dict[int, Kept] = {}  # clients in memory
        self._changed: set[int] = set()  # clients whose newest state is in no file
        self._most = max(1, unsaved // max(1, nbytes(self.blank)))  # of them, where the others are on disk
        self._early = (f"clients-early-{mark}{number}.safetensors" for number in count())

    def __len__(self) -> int:
        """Clients with state of their own."""
        return len(self._place.keys() | self._rows.keys())

    def read(self, ids: Sequence[int]) -> Kept:
        """The states of `ids` with a leading client axis."""
        if not self.blank:
            return {}
        loaded = self._loaded(client for client in ids if client not in self._rows and client in self._place)
        if not self.on_disk:
            self._rows |= loaded
        known = loaded | {client: self._rows[client] for client in ids if client in self._rows}
        state: Kept = stack([known.get(client, self.blank) for client in ids])
        return state

    def write(self, ids: Sequence[int], kept: Kept) -> None:
        for k, client in enumerate(ids):
            # a row of its own: a view would keep the whole cohort's tensor alive
            self._rows[client] = grow(kept, lambda t, k=k: t[k].clone())
            self._changed.add(client)
        if self.on_disk and len(self._changed) > self._most:
            # Between checkpoints: no checkpoint lists this file yet, so after a crash it is a stray and dropped.
            self._write(next(name for name in self._early if name not in self.segments), self._changed)

    # --- files

    def _file(self, name: str) -> Path:
        assert self.directory is not None
        return self.directory / name

    def _loaded(self, clients: Iterable[int]) -> dict[int, Kept]:
        """States from files, each of which is opened once."""
        wanted: dict[str, list[tuple[int, int]]] = {}
        for client in clients:
            name, row = self._place[client]
            wanted.setdefault(name, []).append((client, row))
        loaded: dict[int, Kept] = {}
        for name, rows in wanted.items():
            with opened_tensors(self._file(name)) as file:
                slices = {key: (file.get_slice(key), like.device) for key, like in _flat(self.blank).items()}
                checks = file.get_tensor(CHECKS).numpy() if CHECKS in list(file.keys()) else None
                for client, row in rows:
                    read = {key: part[row : row + 1] for key, (part, _) in slices.items()}
                    if checks is not None and checks[row] != _checks([client], read)[0]:
                        raise damaged(self._file(name), f"the state of client {client} has changed")
                    flat = {key: read[key][0].to(device) for key, (_, device) in slices.items()}
                    loaded[client] = {s: {n: flat[f"{s}/{n}"] for n in tree} for s, tree in self.blank.items()}
        return loaded

    def _write(self, name: str, clients: Iterable[int]) -> None:
        """The newest states of `clients` as a new segment, which holds from now on."""
        ids = np.array(sorted(clients), dtype=np.int64)
        number = torch.zeros((), dtype=torch.int64)
        like = {IDS: number, CHECKS: number} | _flat(self.blank)
        # `_blocks` reads old states of these clients, from memory or from the segments that this one replaces. So the
        # index below changes only once the file is whole: an error while writing leaves the store as it was.
        save_rows(self._file(name), like, len(ids), self._blocks(ids))
        for row, client in enumerate(ids.tolist()):
            if client in self._place:
                self.segments[self._place[client][0]].live -= 1
            self._place[client] = name, row
        self.segments[name] = Segment(ids)
        self._changed.difference_update(ids.tolist())
        if self.on_disk:
            # what is in a file need not be in memory, too: this is what makes `on_disk` small
            self._rows = {client: self._rows[client] for client in self._changed}

    def _blocks(self, ids: NDArray[np.int64]) -> Iterator[Tree]:
        size = max(1, BLOCK // max(1, nbytes(self.blank)))
        for at in range(0, len(ids), size):
            some = ids[at : at + size]
            states = {key: t.detach().cpu() for key, t in _flat(self.read(some.tolist())).items()}
            checks = torch.tensor(_checks(some.tolist(), states))
            yield {IDS: torch.as_tensor(some), CHECKS: checks} | states

    # --- checkpoints

    def save(self, name: str) -> list[str]:
        """Write what changed as segment `name`; returns the segments that a checkpoint must list, oldest first."""
        # Segments that are folded stay on disk, and on the last checkpoint's list, until `commit`: a crash before that
        # goes back to a checkpoint whose files are all there.
        folded = self._folded()
        moved = {c for s in folded for c in self.segments[s].clients.tolist() if self._place[c][0] == s}
        if moved or self._changed:
            self._write(name, moved | self._changed)
        return [name for name, segment in self.segments.items() if segment.live]

    def _folded(self) -> list[str]:
        """Segments that are mostly out of date, or many of about the same size, once the changed clients leave them."""
        leaving = Counter(self._place[client][0] for client in self._changed if client in self._place)
        live = {name: segment.live - leaving[name] for name, segment in self.segments.items()}
        stale = [name for name, segment in self.segments.items() if 2 * live[name] < len(segment.clients)]
        alike: dict[int, list[str]] = {}
        for name in self.segments:
            if name not in stale:
                alike.setdefault(_power(live[name]), []).append(name)
        return stale + [name for names in alike.values() if len(names) >= ALIKE for name in names]

    def commit(self, segments: Sequence[str]) -> None:
        """The checkpoint that lists `segments` is durable: drop what it replaces."""
        for name in self.forget(segments):
            self._file(name).unlink(missing_ok=True)

    def forget(self, segments: Sequence[str]) -> set[str]:
        """Know of no others than `segments`, which have everybody's state; those that are known no longer."""
        gone = self.segments.keys() - set(segments)
        for name in gone:
            del self.segments[name]
        return gone

    def restore(self, segments: Sequence[str], only: Container[int] | None = None) -> None:
        """The state as of a checkpoint, or that of some clients only."""
        self._rows.clear()
        self._changed.clear()
        self._place.clear()
        self.segments.clear()
        # Oldest first: a later segment overrides the rows of an earlier one, which is how `_place` was built.
        for name in segments:
            with opened_tensors(self._file(name)) as file:
                numbers = file.get_tensor(IDS)
                # The client's number is in its checksum as well: rows that changed places would pass the other check.
                if CHECKS in list(file.keys()) and not torch.equal(file.get_tensor(CHECKS) >> 32, numbers):
                    raise damaged(self._file(name), "the clients of its states are missing")
                clients = numbers.tolist()
            rows = [(row, client) for row, client in enumerate(clients) if only is None or client in only]
            if not rows:
                continue
            self.segments[name] = Segment(np.array([client for _, client in rows], dtype=np.int64))
            for row, client in rows:
                if client in self._place:
                    self.segments[self._place[client][0]].live -= 1
                self._place[client] = name, row


def _flat(state: Kept) -> Tree:
    return {f"{strand}/{name}": tensor for strand, tree in state.items() for name, tensor in tree.items()}


def _checks(clients: Sequence[int], states: Tree) -> list[int]:
    """Return a checksum of each client's row of states."""
    sums = [0] * len(clients)
    for key in sorted(states):
        rows = states[key].contiguous()[..., None].view(torch.uint8).numpy()
        sums = [zlib.crc32(rows[k], total) for k, total in enumerate(sums)]
    return [(client << 32) | total for client, total in zip(clients, sums, strict=True)]


def _power(count: int) -> int:
    """The power of `ALIKE` up to which one can count to `count`."""
    power = 0
    while count >= ALIKE:
        count, power = count // ALIKE, power + 1
    return power
