"""Flower's processes as ours: started with their own home, ended with us, their lines in files.

A child's standard input is a pipe whose other end only we hold. When we end, in whatever way, the pipe closes and the
child ends itself; nothing is left behind.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from fedbraid.errors import UserError
from fedbraid.storage.locks import lock_file
from fedbraid.storage.private import private_folder

PATIENCE = 5.0
"""Seconds a process gets to end by itself."""


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes: paths, no telemetry, no look for updates."""
    scripts = {str(Path(sys.executable).parent), sysconfig.get_path("scripts")}
    package = str(Path(__file__).resolve().parents[2])
    here = "127.0.0.1,localhost,::1"
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "PATH": _joined(os.pathsep, *sorted(scripts), os.environ.get("PATH")),
        "PYTHONPATH": _joined(os.pathsep, package, os.environ.get("PYTHONPATH")),
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": _joined(",", here, os.environ.get("NO_PROXY")),
        "no_proxy": _joined(",", here, os.environ.get("no_proxy")),
    }


def _joined(between: str, *parts: str | None) -> str:
    return between.join(part for part in parts if part)


@dataclass(frozen=True, eq=False)
class Child:
    """One of our processes, with all that it has started."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> None:
        self.ask_to_end()
        self.make_end()

    def ask_to_end(self) -> None:
        if self.process.returncode is None:
            self.process.terminate()

    def make_end(self) -> None:
        """Wait for it a little, then end it and whatever it has left in its group."""
        if self.process.returncode is not None:
            return  # its number may be another's by now, and what it started has watched it end
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()


def start(role: str, arguments: Sequence[str], *, log: Path, env: Mapping[str, str], name: str = "") -> Child:
    """Start one of Flower's processes, in a group of its own, so that Ctrl-C reaches us first."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as lines:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedbraid.deploy", role, *arguments],  # -P: no modules from the cwd
            stdin=subprocess.PIPE,
            stdout=lines,
            stderr=lines,
            env=dict(env),
            start_new_session=True,
        )
    return Child(name or role, process, log)


@contextmanager
def ended_with_us() -> Iterator[list[Child]]:
    """A list of children, for whoever starts some. On the way out, by whatever way, they are ended.

    SIGTERM and SIGHUP lead there as Ctrl-C does; once there, none of them interrupts any more.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signals = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    children: list[Child] = []
    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield children
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        for child in reversed(children):
            child.ask_to_end()
        for child in reversed(children):
            child.make_end()
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_the_pipe() -> None:
    """In a child: end when the pipe from the parent closes."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        sleep(PATIENCE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def end_with_parent() -> None:
    """In a grandchild, which has no pipe: end when the parent has. What must last is on the disk by then."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """One process at a time works in a folder, which others cannot read."""
    private_folder(folder)
    with open(folder / ".lock", "w") as lock:
        try:
            lock_file(lock.fileno(), wait=False)
        except BlockingIOError:
            raise UserError(f"{folder.parent} is in use by another process; wait for it, or choose another") from None
        yield


class Tail:
    """The whole lines that were added to a file since one last looked."""

    def __init__(self, file: Path, *, from_now: bool = False) -> None:
        self.file = file
        self._open: IO[bytes] | None = None
        self._rest = b""
        self._skip = file.stat().st_size if from_now and file.exists() else 0

    def lines(self) -> list[str]:
        if self._open is None:
            if not self.file.exists():
                return []
            self._open = open(self.file, "rb")  # noqa: SIM115
            self._open.seek(self._skip)
        *whole, self._rest = (self._rest + self._open.read()).split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def close(self) -> None:
        if self._open:
            self._open.close()


def last_lines(file: Path, count: int = 5) -> str:
    """The end of a log, for an error that has no better words."""
    if not file.exists():
        return ""
    lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-count:])


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def wait_for_port(host: str, port: int, seconds: float) -> bool:
    """Wait until a server could listen there; a process that ended just now may hold the port."""
    until = monotonic() + seconds
    while True:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((host, port))
                return True
            except OSError:
                if monotonic() >= until:
                    return False
        sleep(0.2)
