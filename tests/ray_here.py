"""A Ray of the tests' own: short paths for its sockets, and no process left behind."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NOISE = (
    # Ray opens /dev/null for its processes and leaves closing it, and waiting for them, to the garbage collector
    "ignore:unclosed file <_io:ResourceWarning",
    "ignore:subprocess .* is still running:ResourceWarning",
    "ignore:Exception ignored in. <_io.FileIO name='/dev/null':pytest.PytestUnraisableExceptionWarning",
    "ignore:Exception ignored in. <function Popen.__del__:pytest.PytestUnraisableExceptionWarning",
    "ignore:Tip. In future versions of Ray:FutureWarning",
)


@contextmanager
def own_place(end: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Where Ray keeps its files. After its `end`, every process that it started is gone."""
    place = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # the path of a socket has to be short
    before = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = str(place)
    try:
        yield place
    finally:
        end()
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


QUICKLY = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_failure_threshold": 3,
    "health_check_timeout_ms": 500,
}
"""Ray notices after a second, not after many, that a node is gone."""


class Nodes:
    """A cluster: a head without workers, and nodes with room for one worker each."""

    def __init__(self, count: int) -> None:
        from ray.cluster_utils import Cluster

        small = {"object_store_memory": 100 << 20, "include_dashboard": False}
        self.cluster = Cluster(True, head_node_args={"num_cpus": 0, "_system_config": QUICKLY, **small})
        self.nodes: list[Any] = []
        self.orphans: list[int] = []
        for _ in range(count):
            self.add()
        self.cluster.wait_for_nodes()

    def add(self) -> None:
        self.nodes.append(self.cluster.add_node(num_cpus=1, object_store_memory=100 << 20, wait=False))

    def kill(self, node: Any) -> None:
        """SIGKILL to the process that a node is. Its workers go on until they notice."""
        self.nodes.remove(node)
        process = node.all_processes["raylet"][0].process.pid
        self.orphans += children_of(process)
        os.kill(process, signal.SIGKILL)

    def shutdown(self) -> None:
        self.cluster.shutdown()
        for process in self.orphans:  # they would notice in the end
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def children_of(process: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
