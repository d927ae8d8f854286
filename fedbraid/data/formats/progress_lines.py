"""Lines about work that takes a while."""

from __future__ import annotations

import logging
import time

log = logging.getLogger("fedbraid")

EVERY = 5.0
"""Seconds between two lines."""


class Progress:
    """Says how much there is to do, and every few seconds how much of it is done."""

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what = total, what
        self._done, self._told = 0, time.monotonic()
        log.info("decoding %s %s", f"{total:,}", what)

    def add(self, count: int) -> None:
        self._done += count
        if time.monotonic() - self._told >= EVERY:
            self._told = time.monotonic()
            log.info("decoded %s of %s %s", f"{self._done:,}", f"{self._total:,}", self._what)
