"""Cache of compiled libraries on disk, keyed by a hash of source, compiler, flags and processor.

An entry is `<key>.json` beside `<key>.so`. Crash safety: the library is written to a temporary file and renamed, then
the JSON with its checksum is written, last. An entry that a crash or a full disk left incomplete fails the check and is
compiled again; two processes that compile the same source overwrite each other with equal files. A failed compilation
is recorded as well, so that it is not repeated in every run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from fedbraid.data.paths import cache_directory
from fedbraid.storage.files import replacing, write_json

VERSION = 1
"""Part of the key: increased when cached libraries must not be used any more."""
FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-w"]
"""None of these lets the compiler change the order of sums."""
KEPT = 256
"""Entries at most; those not used for longest go first."""


class NotCompiled(Exception):
    """Raised with the reason if no library can be provided."""


def library(text: str, cap: float) -> Path:
    """Return the path of the compiled library of a C program, from the cache or compiled now.

    Args:
        text: the C source.
        cap: seconds that the compiler may take; 0 allows cached libraries only.

    Raises NotCompiled if there is no compiler, the time runs out or the source is refused.
    """
    compiler = os.environ.get("CC", "cc")
    place = _place(text, compiler)
    there = _found(place)
    if there:
        return there
    if not cap:
        raise NotCompiled("engine.compile_seconds is 0 and there is no library yet")
    if shutil.which(compiler) is None:
        raise NotCompiled(f"there is no C compiler called {compiler} (CC names another)")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place.with_suffix(".so")) as beside:
            failed = _compiled(text, compiler, beside, cap)
            if failed:
                write_json(place.with_suffix(".json"), {"failed": failed})
                raise NotCompiled(failed)
        write_json(place.with_suffix(".json"), {"sha256": _checksum(place.with_suffix(".so"))})
        _forget_the_oldest(place.parent)
    except OSError as error:
        raise NotCompiled(f"{place.parent} cannot be written to ({error.strerror or error})") from error
    return place.with_suffix(".so")


def _found(place: Path) -> Path | None:
    """Return the cached library, or None. Raises NotCompiled if an earlier compilation failed."""
    try:
        told = json.loads(place.with_suffix(".json").read_text())
        if "failed" in told:
            raise NotCompiled(f"{told['failed']} (remembered in {place.parent})")
        if told["sha256"] == _checksum(place.with_suffix(".so")):
            os.utime(place.with_suffix(".json"))
            return place.with_suffix(".so")
    except (OSError, ValueError, KeyError, TypeError):  # nothing there, or not whole
        pass
    return None


def _compiled(text: str, compiler: str, library: Path, cap: float) -> str:
    """Compile the library; return the compiler's reason if it refuses, else an empty string."""
    try:
        done = subprocess.run(
            [compiler, *FLAGS, "-x", "c", "-", "-o", str(library), "-lm"],
            input=text,
            capture_output=True,
            text=True,
            timeout=cap,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotCompiled(f"it takes more than {cap:g} s (engine.compile_seconds)") from None
    if done.returncode < 0:
        raise NotCompiled(f"the compiler was ended by signal {-done.returncode}")
    lines = [line for line in done.stderr.splitlines() if "error" in line]
    return f"{compiler} refuses it: {lines[0][:200] if lines else 'no reason given'}" if done.returncode else ""


def _place(text: str, compiler: str) -> Path:
    here = VERSION, compiler, FLAGS, _processor(), text
    return cache_directory() / "compiled" / hashlib.sha256(json.dumps(here).encode()).hexdigest()[:24]


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _forget_the_oldest(places: Path) -> None:
    entries = sorted(places.glob("*.json"), key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in entries[KEPT:]:
        for file in (entry, entry.with_suffix(".so")):
            with suppress(OSError):
                file.unlink()


def _processor() -> str:
    """Return the processor's instruction sets: a library built with `-march=native` needs all of them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return sys.platform
    return next((line for line in lines if line.startswith(("flags", "Features"))), sys.platform)
