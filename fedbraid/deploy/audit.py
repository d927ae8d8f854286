"""The audit log of a federation's server: who was let in, refused or lost, when and why, as JSON lines.

The log for people leaves out what it said a minute ago. This one leaves out nothing: `OUT/flower/audit.jsonl`
is appended to by the process before the SuperLink and by the one that conducts the run. A line is written with one call
to a file that is opened for appending, so that lines of two processes never mix.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

FILE = "audit.jsonl"

_log = logging.Logger("fedbraid.audit", logging.INFO)  # of its own: no configuration of others' loggers silences it


def record(decision: str, reason: str, *, client: str = "", key: str = "") -> None:
    """Append a line, if `recording` says where to.

    Args:
        decision: connected, left, accepted, refused or lost.
        reason: the sentence that the log has, or what the decision was about.
        client: the client's name, as its key says; "" if it is not known.
        key: its public key (PEM), of which a fingerprint is recorded.
    """
    _log.info(reason, extra={"decision": decision, "client": client, "key": fingerprint(key)})


def fingerprint(key: str) -> str:
    """Return the first 16 hexadecimal digits of a key's SHA-256; "" for no key."""
    return hashlib.sha256(key.encode()).hexdigest()[:16] if key else ""


@contextmanager
def recording(file: Path) -> Iterator[None]:
    """Append what is recorded in this process to a file that only its owner can read."""
    handler = _JsonLines(file)
    _log.addHandler(handler)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        handler.close()


class _JsonLines(logging.Handler):
    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        line = {"time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")}
        line |= {key: getattr(record, key, "") for key in ("client", "key", "decision")}
        # Opened for each line: who configures logging, as uvicorn does, closes all handlers that there are.
        file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, json.dumps(line | {"reason": record.getMessage()}).encode() + b"\n")
        finally:
            os.close(file)
