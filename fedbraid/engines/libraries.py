"""Compiled libraries on disk: made once by another process, found by what they were made from.

An entry is `<key>.json`, which says either how the library `<key>.so` was made or why it could not be; it is written
last and holds the library's checksum, so that an entry that is not whole is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import fedbraid
from fedbraid.data.places import cache_directory
from fedbraid.files import replacing, write_json

VERSION = 1
"""Raised when the compiler makes another library of the same request."""
KEPT = 64
"""Entries at most; those not used for longest go first."""


class NotCompiled(Exception):
    """There is no library, for the reason given."""


@dataclass(frozen=True)
class Input:
    """A tensor that a program takes; `grows` where its first dimension may be any but 0 and 1."""

    shape: tuple[int, ...]
    dtype: str
    grows: bool = False


@dataclass(frozen=True)
class Request:
    """A step to be repeated. Its inputs are what it carries, its row of the plan, and the rest."""

    source: str  # defines `program`, which gives the new values of what is carried
    inputs: tuple[Input, ...]
    carried: int
    planned: int

    @property
    def key(self) -> str:
        """A name for the library that this makes here."""
        here = VERSION, torch.__version__, torch.backends.cpu.get_cpu_capability(), _processor()
        return hashlib.sha256(json.dumps([here, asdict(self)]).encode()).hexdigest()[:24]


def found(request: Request) -> Path | None:
    """The library of an earlier compilation; raises NotCompiled where that failed."""
    place = _place(request)
    try:
        told = json.loads(place.with_suffix(".json").read_text())
        if "failed" in told:
            raise NotCompiled(f"{told['failed']} (remembered in {place.parent})")
        library = place.with_suffix(".so")
        if told["sha256"] == _checksum(library):
            os.utime(place.with_suffix(".json"))
            return library
    except (OSError, ValueError, KeyError, TypeError):  # nothing there, or not whole
        pass
    return None


def library(request: Request, cap: float, note: Callable[[], None]) -> Path:
    """The library of a request, compiled in at most `cap` seconds if it is not there yet; `note` is called before."""
    there = found(request)
    if there:
        return there
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise NotCompiled(f"there is no C++ compiler ({compiler})")
    note()
    place = _place(request)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fedbraid-compile-") as folder:
            failed = _compiled(request, Path(folder), cap)
            if failed:
                write_json(place.with_suffix(".json"), {"failed": failed})
                raise NotCompiled(failed)
            with replacing(place.with_suffix(".so")) as beside:
                shutil.copyfile(Path(folder) / "library.so", beside)
        write_json(place.with_suffix(".json"), {"sha256": _checksum(place.with_suffix(".so"))})
        _forget_the_oldest(place.parent)
    except OSError as error:
        raise NotCompiled(f"{place.parent} cannot be written to ({error.strerror or error})") from error
    return place.with_suffix(".so")


def _compiled(request: Request, folder: Path, cap: float) -> str:
    """Makes `library.so` in `folder`; returns why not, if it could not."""
    (folder / "request.json").write_text(json.dumps(asdict(request)))
    path = os.pathsep.join([str(Path(fedbraid.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "fedbraid.engines.compiler", "request.json", "library.so"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(folder / "work")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that the C++ compilers it starts can be stopped with it
    )
    try:
        _, said = process.communicate(timeout=cap)
    except subprocess.TimeoutExpired:
        return f"it took more than {cap:g} s to compile"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode == 0:
        return ""
    if process.returncode < 0:
        raise NotCompiled(f"its compilation was ended by signal {-process.returncode}")
    lines = [line for line in said.splitlines() if line.strip()]
    return f"it does not compile: {lines[-1][:200] if lines else 'no reason given'}"


def _place(request: Request) -> Path:
    return cache_directory() / "compiled" / request.key


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _forget_the_oldest(places: Path) -> None:
    entries = sorted(places.glob("*.json"), key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in entries[KEPT:]:
        for file in (entry, entry.with_suffix(".so")):
            with suppress(OSError):
                file.unlink()


def _processor() -> Any:
    """What a library made with all of this processor's instructions needs of another one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return sys.platform
    return next((line for line in lines if line.startswith(("flags", "Features"))), sys.platform)
