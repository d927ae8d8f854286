"""Client states that workers write, seen from the driver: the current segment files of each share.

All segments are in one folder that every machine sees. Segments are never changed, and each has a unique name, so those
current at the beginning of a round stay valid until its end, even if every worker is lost in between.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from fedbraid.core.round import nothing
from fedbraid.storage.client_store import ClientStore, Kept


class RemoteStates(ClientStore):
    """The client store of a cluster; `settle` waits until the states of the latest round are in files."""

    def __init__(self, blank: Kept, directory: Path | None = None, *, on_disk: bool = False) -> None:
        self.close: Callable[[], object] = nothing
        if directory is None and any(blank.values()):
            directory = Path(tempfile.mkdtemp(prefix="fedbraid-states-"))
            self.close = weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        super().__init__(blank, directory and directory.resolve(), on_disk=on_disk)
        self.order: list[str] = []  # all segments that hold now, oldest first
        self.of_share: dict[int, list[str]] = {}  # those that have a share's clients; of one that is not here: all
        self.committed: frozenset[str] = frozenset()  # what the latest checkpoint lists
        self.settle: Callable[[], None] = nothing
        self.release: Callable[[], None] = nothing  # told that what workers hold is no longer so

    # --- for the engine

    def segments_of(self, shares: Iterable[int]) -> list[str]:
        """Return the segments that hold the states of these shares' clients, oldest first."""
        mine = [self.of_share.get(share, self.order) for share in shares]
        listed = {name for names in mine for name in names}
        return [name for name in self.order if name in listed]

    def advance(self, kept: Mapping[int, Sequence[str]], shares: int) -> None:
        """Make these segments current after a round, and delete those that neither a share nor a checkpoint needs."""
        before = set(self.order)
        now = {share: list(kept.get(share, self.segments_of([share]))) for share in range(shares)}
        listed = {name for names in now.values() for name in names}
        fresh = dict.fromkeys(name for names in now.values() for name in names if name not in before)
        self.order = [name for name in self.order if name in listed] + list(fresh)
        self.of_share = now
        self._drop(before - listed - self.committed)

    @contextmanager
    def marker(self) -> Iterator[str]:
        """Create a marker file, by which workers check that they see the same folder."""
        name = f".seen-{uuid4().hex}" if self.blank else ""
        if not name:
            yield name
            return
        file = self._file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        try:
            yield name
        finally:
            file.unlink(missing_ok=True)

    def share_out(self, origin: Mapping[int, Iterable[int]]) -> None:
        """Record that clients moved: `origin` names the old shares of each new share."""
        self.of_share = {share: self.segments_of(before) for share, before in origin.items()}

    # --- for checkpoints and readers

    def read(self, ids: Sequence[int]) -> Kept:
        if not self.blank:
            return {}
        self.settle()
        super().restore(self.order, set(ids))
        return super().read(ids)

    def write(self, ids: Sequence[int], kept: Kept) -> None:
        raise RuntimeError("clients' states are written where they train")

    def save(self, name: str) -> list[str]:
        """Return the segments that a checkpoint must list; workers have written them."""
        self.settle()
        return list(self.order)

    def commit(self, segments: Sequence[str]) -> None:
        replaced = self.committed - set(self.order)
        self.committed = frozenset(segments)
        self._drop(replaced - self.committed)

    def restore(self, segments: Sequence[str], only: Container[int] | None = None) -> None:
        self.release()
        self.order, self.of_share, self.committed = list(segments), {}, frozenset(segments)

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._file(name).unlink(missing_ok=True)
