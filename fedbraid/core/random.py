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
    key = np.array([seed % 2**64, (round << 32) | client], dtype=np.uint64)
    place = np.array([0, 0, 0, crc32(purpose.encode())], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(_Key(key), counter=place))  # type: ignore[arg-type, unused-ignore]


class _Key(ISeedSequence):
    """A seed that is the key itself. `Philox(key=...)` asks the system for entropy first, which takes far longer."""

    def __init__(self, key: Any) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return self.key
