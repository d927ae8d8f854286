"""Torch's global random generators, used by one run at a time.

Networks draw their initial weights from torch's global generator, and trials of a user's network may draw from it. It
belongs to the whole process: without a lock, a run in another thread would draw in between, or put back a state of its
own, and both would begin with other weights than their seeds say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

_LOCK = RLock()


@contextmanager
def forked_generator(device: torch.device | None = None, seed: int | None = None) -> Iterator[None]:
    """Have what is drawn inside leave torch's generators as they were; with a `seed`, begin from it.

    `device` is where drawing may happen beside the CPU. Only the CPU's generator is seeded: `torch.manual_seed` would
    reseed those of all GPUs.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with _LOCK, torch.random.fork_rng(devices=devices):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        yield
