"""A Ray of the tests' own: short paths for its sockets, and no process left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOISE = (
    # Ray opens /dev/null for its processes and leaves closing it, and waiting for them, to the garbage collector
    "ignore:unclosed file <_io:ResourceWarning",
    "ignore:subprocess .* is still running:ResourceWarning",
    "ignore:Exception ignored in. <_io.FileIO name='/dev/null':pytest.PytestUnraisableExceptionWarning",
    "ignore:Exception ignored in. <function Popen.__del__:pytest.PytestUnraisableExceptionWarning",
    "ignore:Tip. In future versions of Ray:FutureWarning",
)


@contextmanager
def own_ray() -> Iterator[Path]:
    """Where Ray keeps its files. Afterwards it is shut down, and every process that it started is gone."""
    import ray

    place = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # the path of a socket has to be short
    before = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = str(place)
    try:
        yield place
    finally:
        ray.shutdown()
        if before is None:
            del os.environ["RAY_TMPDIR"]
        else:
            os.environ["RAY_TMPDIR"] = before
        left = wait_for_the_end_of_all(place)
        shutil.rmtree(place, ignore_errors=True)
        assert not left, f"Ray's processes {left} are still there"


def wait_for_the_end_of_all(place: Path, seconds: float = 60.0) -> list[int]:
    """The processes that are left after a while."""
    until = time.monotonic() + seconds
    while (left := started_at(place)) and time.monotonic() < until:
        time.sleep(0.2)
    return left


def started_at(place: Path) -> list[int]:
    """Processes that were told to keep Ray's files there."""
    mark, found = f"RAY_TMPDIR={place}\0".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes() and int(process.name) != os.getpid():
                found.append(int(process.name))
        except OSError:  # it has just ended
            continue
    return found
