"""Client state between rounds: allocated on first use, saved in pieces, in memory or on disk.

The saved form is a log. Each checkpoint writes one segment with the clients that changed since the last one, and the
index says which segment holds each client's newest state. Segments that are mostly out of date are folded into the
next one. So a checkpoint costs what changed, and a crash at any instant leaves the last one whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open

from fedbraid.core.tree import Tree, grow, stack
from fedbraid.files import save_tensors

State = dict[str, Tree]
"""{strand: {name: tensor}} of one client."""


class ClientStore:
    """What strands keep on clients. `blank` is the state of a client that was never sampled."""

    def __init__(self, blank: State, directory: Path | None = None, *, on_disk: bool = False) -> None:
        self.blank = {strand: tree for strand, tree in blank.items() if tree}
        self.directory = directory
        self.on_disk = on_disk and directory is not None
        self.index: dict[int, str] = {}  # client -> the segment that holds its newest saved state
        self._rows: dict[int, State] = {}  # clients in memory
        self._changed: set[int] = set()  # clients whose newest state is not saved

    def __len__(self) -> int:
        """Clients with state of their own."""
        return len(self.index.keys() | self._rows.keys())

    def read(self, ids: Sequence[int]) -> State:
        """The states of `ids` with a leading client axis."""
        if not self.blank:
            return {}
        state: State = stack([self._read_one(client) for client in ids])
        return state

    def write(self, ids: Sequence[int], kept: State) -> None:
        for k, client in enumerate(ids):
            # a row of its own: a view would keep the whole cohort's tensor alive
            self._rows[client] = grow(kept, lambda t, k=k: t[k].clone())
            self._changed.add(client)

    def _read_one(self, client: int) -> State:
        if client in self._rows:
            return self._rows[client]
        if client not in self.index:
            return self.blank
        state = self._load(client)
        if not self.on_disk:
            self._rows[client] = state
        return state

    def _load(self, client: int) -> State:
        assert self.directory is not None
        with safe_open(self.directory / self.index[client], framework="pt") as segment:
            return {
                strand: {
                    name: segment.get_tensor(f"{client}/{strand}/{name}").to(like.device) for name, like in tree.items()
                }
                for strand, tree in self.blank.items()
            }

    # --- checkpoints

    def save(self, segment: str) -> dict[int, str]:
        """Write what changed as `segment`; returns the new index, which holds once `commit` is called."""
        assert self.directory is not None
        live = Counter(self.index[c] for c in self.index if c not in self._changed)
        stale = {name for name in set(self.index.values()) if 2 * live[name] < self._clients_in(name)}
        moved = {c for c, name in self.index.items() if name in stale} | self._changed
        if not moved:
            return dict(self.index)
        tensors = {
            f"{client}/{strand}/{name}": tensor
            for client in sorted(moved)
            for strand, tree in self._read_one(client).items()
            for name, tensor in tree.items()
        }
        save_tensors(self.directory / segment, tensors)
        return self.index | dict.fromkeys(sorted(moved), segment)

    def _clients_in(self, segment: str) -> int:
        """How many clients a segment was written with, whether or not their state is still the newest."""
        assert self.directory is not None
        with safe_open(self.directory / segment, framework="pt") as held:
            return len({key.split("/", 1)[0] for key in held.keys()})  # noqa: SIM118 (not a dictionary)

    def commit(self, index: dict[int, str]) -> None:
        """The checkpoint is durable: forget what it replaces."""
        assert self.directory is not None
        for name in set(self.index.values()) - set(index.values()):
            (self.directory / name).unlink(missing_ok=True)
        self.index = dict(index)
        self._changed.clear()
        if self.on_disk:
            self._rows.clear()

    def restore(self, index: dict[int, str]) -> None:
        """The state as of a checkpoint."""
        self._rows.clear()
        self._changed.clear()
        self.index = dict(index)
