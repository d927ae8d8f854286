"""Who is compared, and a contender's process: started, asked, stopped while others are measured."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from uuid import uuid4

from peers.machine import MARK, marked, memory

HERE = Path(__file__).parent
LIMIT = 900.0
"""Seconds that an answer may take."""

KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""What FedBraid asks of glibc by itself, as variables that anybody could set."""

AT_HOME = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
"""Nobody reports to anybody, or waits for that."""


@dataclass(frozen=True)
class Contender:
    name: str
    worker: str
    recipe: str | None = None  # of its environment; None = the one that FedBraid runs in
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    processes: int = 1  # of which each needs a client in every round, or the others wait for it forever

    @property
    def federates(self) -> bool:
        return self.worker != "by_tight_loop"


def contenders(device: str, cores: int) -> tuple[Contender, ...]:
    """All there are on a device. Threads: all cores for who has one process, else a process for each core."""
    threads = ("--threads", str(cores))
    fedbraid = [
        Contender("fedbraid", "by_fedbraid", options=threads),
        Contender("fedbraid-loop", "by_fedbraid", options=(*threads, "--engine", "loop")),
        Contender("fedbraid-stack", "by_fedbraid", options=(*threads, "--engine", "stack")),
    ]
    plain = [
        Contender("usual", "by_usual_loop", options=threads),
        Contender("tight", "by_tight_loop", options=threads),
    ]
    if device == "cuda":
        return (fedbraid[0], *plain, *(pfl(n, threads=1) for n in (1, 2, 4, 8, 16)))
    several = max(2, cores)
    return (
        *fedbraid,
        *plain,
        Contender("tight-malloc", "by_tight_loop", options=threads, env=KEEP_FREED_MEMORY),
        pfl(1, cores),
        pfl(several, 1),
        pfl(1, cores, KEEP_FREED_MEMORY),
        pfl(several, 1, KEEP_FREED_MEMORY),
        Contender("flower", "by_flower", "flower", threads, {"OMP_NUM_THREADS": "1"}),
        Contender("fedlab", "by_fedlab", "fedlab", threads),
    )


def pfl(processes: int, threads: int, env: dict[str, str] | None = None) -> Contender:
    name = "pfl" + f"-{processes}" * (processes > 1) + "-malloc" * bool(env)
    options = ("--processes", str(processes), "--threads", str(threads))
    return Contender(name, "by_pfl", "pfl", options, env or {}, processes)


def environment(contender: Contender, site: Path | None) -> dict[str, str]:
    """The variables that a contender runs with: ours, less those that would set its threads or its allocator."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_", "MALLOC_", "PYTHONPATH"))}
    path = [str(HERE.parent), str(HERE.parent.parent)]
    if site and contender.recipe:
        path.insert(0, str(site))
    if site or not contender.recipe:  # this interpreter: what it finds, they find
        path.append(os.environ.get("PYTHONPATH", ""))
    return inherited | AT_HOME | contender.env | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


class Failed(Exception):
    """Why a contender gave no answer."""


class Running:
    """A contender at work on one federation."""

    def __init__(self, contender: Contender, python: Path, env: dict[str, str], given: list[str], log: Path) -> None:
        self.contender, self.log, self.mark = contender, log, uuid4().hex
        self.began = perf_counter()
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [str(python), "-m", f"peers.{contender.worker}", *given, *contender.options],
                env=env | {MARK: self.mark},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                bufsize=1,
                start_new_session=True,
            )
        try:
            self._answer("ready")
        except Failed:
            self.close()
            raise

    def rounds(self, first: int, several: int = 1) -> float:
        """Seconds of so many rounds, one after the other."""
        self._say(f"rounds {first} {several}")
        return float(self._answer())

    def save(self, path: Path) -> None:
        self._say(f"save {path}")
        self._answer("saved")

    def pids(self) -> list[int]:
        return marked(self.mark)

    def pause(self) -> None:
        """All its processes stop where they are, and take no time from the others."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def memory(self) -> int:
        return memory(self.pids())

    def close(self) -> None:
        self.resume()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=15)
        self._signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def _say(self, line: str) -> None:
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._reason()) from None

    def _answer(self, expected: str | None = None) -> str:
        if not select.select([self.process.stdout], [], [], LIMIT)[0]:
            raise Failed(f"no answer within {LIMIT:.0f} s")
        answer = self.process.stdout.readline().strip()
        if not answer or (expected and answer != expected):
            raise Failed(self._reason())
        return answer

    def _reason(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "it ended without a word"

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
