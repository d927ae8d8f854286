"""CPU settings of this process: cores, threads, allocator."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def usable_cores() -> int:
    """Return the number of cores this process may use, which a container or scheduler may limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the enclosed code with one thread per operation, then restore the setting.

    Parallelism comes from clients, not from inside small operations: faster, steady on a busy machine (idle threads
    spin), and results do not depend on the number of cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Ask glibc to keep freed memory instead of returning it to the system after every activation.

    Training frees and takes the same large blocks at each step; giving them back costs page faults worth a quarter
    to a half of a CNN step's time. A no-op on other C libraries.
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(mmap_threshold, 1 << 30)
    mallopt(trim_threshold, (1 << 31) - 1)
    mallopt(top_pad, 64 << 20)
