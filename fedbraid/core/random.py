"""Randomness as data: every draw comes from a stream that is named, never from a generator that is shared.

A stream is a counter-based generator (Philox) whose key is (seed, round, client) and whose counter starts at a
place given by the purpose. So a draw depends on what it is for and on nothing else: not on the engine, not on who
else was sampled, not on what was drawn before. Resuming needs no generator state.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
from numpy.random.bit_generator import ISeedSequence

SERVER = 2**32 - 1
"""The client number of the server's own streams."""


def stream(seed: int, purpose: str, *, round: int = 0, client: int = SERVER) -> np.random.Generator:
    """The generator of `client` in `round` for `purpose`.

    >>> bool(stream(0, "order", round=3, client=7).random() == stream(0, "order", round=3, client=7).random())
    True
    """
    generator = np.random.Philox(_NOTHING)  # type: ignore[arg-type]  # numpy takes any ISeedSequence
    place = {"key": (seed % 2**64, (round << 32) | client), "counter": (0, 0, 0, crc32(purpose.encode()))}
    generator.state = _FRESH | {"state": place}
    return np.random.Generator(generator)


class _Nothing(ISeedSequence):
    """Seeds with zeros. `Philox(key=...)` asks the system for entropy first, which takes twice as long as all else."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return np.zeros(n_words, dtype)


_NOTHING = _Nothing()
_FRESH: Any = {
    "bit_generator": "Philox",
    "buffer": np.zeros(4, dtype=np.uint64),
    "buffer_pos": 4,
    "has_uint32": 0,
    "uinteger": 0,
}
