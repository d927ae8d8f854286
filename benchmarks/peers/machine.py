"""What the machine is, can do, and is doing besides. Read from Linux's /proc."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from fedbraid.engines.cpu import usable_cores

MARK = "FEDBRAID_PEER"
"""The variable by which a contender's processes are told apart, children of children included."""
TICKS = os.sysconf("SC_CLK_TCK")


def describe(device: str) -> dict[str, object]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    gpu = {"gpu": torch.cuda.get_device_name()} if device == "cuda" else {}
    return {"cpu": model, "cores": usable_cores(), "python": platform.python_version(), **gpu}


def sgemm_peak(threads: int, windows: int, size: int = 1024) -> float:
    """FLOP a second of the best of several short windows of matrix products in float32."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)
    best = float("inf")
    for _ in range(windows):
        began = time.perf_counter()
        for _ in range(4):
            torch.mm(a, b, out=out)
        best = min(best, time.perf_counter() - began)
    torch.set_num_threads(before)
    return 4 * 2 * size**3 / best


def marked(mark: str) -> list[int]:
    """The processes that inherited a mark."""
    wanted = f"{MARK}={mark}".encode()
    return [pid for pid in _processes() if wanted in _read(pid, "environ").split(b"\0")]


def memory(pids: Iterable[int]) -> int:
    """Bytes; pages that processes share are counted once, in parts (PSS)."""
    lines = (line for pid in pids for line in _read(pid, "smaps_rollup").splitlines())
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(b"Pss:"))


@dataclass(frozen=True)
class Moment:
    """How much the processors have worked so far: for all, and for ourselves."""

    when: float
    all: float  # seconds
    own: float

    @staticmethod
    def now(pids: Iterable[int]) -> Moment:
        user, nice, system, _, _, irq, softirq, steal, *_ = _stat()
        busy = (user + nice + system + irq + softirq + steal) / TICKS
        return Moment(time.perf_counter(), busy, sum(map(_seconds, [*pids, os.getpid()])))

    def others_until(self, then: Moment) -> float:
        """The share of the cores that others took in between."""
        others = (then.all - self.all) - (then.own - self.own)
        return max(0.0, others) / (usable_cores() * (then.when - self.when))


def wait_for_quiet(limit: float, window: float = 0.5) -> None:
    """Until others leave the cores alone for a while."""
    while True:
        before = Moment.now([])
        time.sleep(window)
        if before.others_until(Moment.now([])) <= limit:
            return


def _stat() -> list[int]:
    with open("/proc/stat") as file:
        return [int(number) for number in file.readline().split()[1:]]


def _seconds(pid: int) -> float:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS if fields else 0.0


def _processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _read(pid: int, name: str) -> bytes:
    """Empty for a process that ended meanwhile, or is not ours to look into."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (OSError, ProcessLookupError):
        return b""
