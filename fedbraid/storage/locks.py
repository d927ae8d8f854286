"""Exclusive locks on open files, on Unix and on Windows.

The operating system releases a lock when its process ends in whatever way, so that a killed process blocks nobody. Only
one of the two modules exists on a system, so neither is imported before it is known to be there.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import sleep

PAUSE = 0.05
"""Seconds between two attempts where the system cannot wait for a lock itself."""


def lock_file(descriptor: int, *, wait: bool) -> None:
    """Take the exclusive lock of an open file.

    Args:
        descriptor: of the file, opened for writing.
        wait: whether to wait while another process has the lock.

    Raises:
        BlockingIOError: another process has the lock, and `wait` is false.
    """
    if find_spec("fcntl"):
        fcntl = import_module("fcntl")
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    while not _lock_first_byte(descriptor):
        if not wait:
            raise BlockingIOError("another process has the lock")
        sleep(PAUSE)


def _lock_first_byte(descriptor: int) -> bool:
    """Take a lock as Windows has it, on a range of bytes, and return whether that succeeded."""
    msvcrt = import_module("msvcrt")
    os.lseek(descriptor, 0, os.SEEK_SET)  # the range begins at the file's position
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True


def remove_and_unlock(file: Path, descriptor: int) -> None:
    """Remove a locked file and release its lock.

    On Unix the file is removed while it is locked, so that whoever waits for it finds that it is gone and takes a new
    one. Windows does not remove an open file; there it is closed first, and stays if another process opened it.
    """
    if os.name == "nt":
        os.close(descriptor)
        with suppress(OSError):
            file.unlink(missing_ok=True)
        return
    try:
        file.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
