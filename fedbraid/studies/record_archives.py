"""Archives of run records: many records in one compressed file, for keeping and publishing.

    OUT/runs/<data set>.jsonl.xz

A study that runs writes a file for each record (`studies.run_records`), because that file is whole or not there,
whatever stops the process. `pack` moves all of them into archives, `unpack` moves them back. An archive is text
compressed with xz: a line for each record, with the same keys and values as the record's own file, sorted by digest
and seed. Its first keys are `digest` and `seed`, so that a record is found without parsing the others. Every number is
written as it was read; nothing is rounded or left out.
"""

from __future__ import annotations

import json
import lzma
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedbraid.errors import UserError
from fedbraid.storage.files import write_bytes

SUFFIX = ".jsonl.xz"
KEY = re.compile(rb'\{"digest":"([0-9a-f]+)","seed":(\d+),')
PRESET = 9 | lzma.PRESET_EXTREME

Key = tuple[str, int]
"""The digest and the seed of a record."""


@dataclass(frozen=True)
class Archived:
    """A record as an archive has it."""

    text: bytes  # JSON
    path: Path  # of the archive
    line: int  # counted from 1

    def __str__(self) -> str:
        return f"line {self.line} of {self.path}"


def archives(out: Path) -> list[Path]:
    """Return the archives under `out`, by name."""
    return sorted((out / "runs").glob(f"*{SUFFIX}"))


def archived(out: Path) -> dict[Key, Archived]:
    """Return every archived record under `out`. Where two archives have the same record, the first by name counts.

    Raises:
        UserError: an archive is damaged.
    """
    found: dict[Key, Archived] = {}
    for lines in reversed(_all_lines(out)):
        found |= lines
    return found


def find_archived(out: Path, key: Key) -> Archived | None:
    """Return one archived record, or None."""
    return next((lines[key] for lines in _all_lines(out) if key in lines), None)


def _all_lines(out: Path) -> list[Mapping[Key, Archived]]:
    read = []
    for path in archives(out):
        status = path.stat()
        read.append(_lines(path, status.st_size, status.st_mtime_ns))
    return read


# A report looks up hundreds of records. The size and the time of the last change are part of the cache's key, so that
# an archive that was packed anew meanwhile is read anew.
@lru_cache(maxsize=32)
def _lines(path: Path, size: int, changed: int) -> Mapping[Key, Archived]:
    try:
        text = lzma.decompress(path.read_bytes())
    except (lzma.LZMAError, EOFError) as error:
        raise UserError(f"{path} is not an archive of records ({error}); put back a copy") from None
    lines: dict[Key, Archived] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        start = KEY.match(line)
        if start is None:
            raise UserError(f"{path} is not an archive of records: see its line {number}; put back a copy")
        lines[start[1].decode(), int(start[2])] = Archived(line, path, number)
    return lines


def line_of(values: Mapping[str, Any]) -> bytes:
    """Return a record's line: the values of its own file, with the key first."""
    values = {"digest": values["digest"], "seed": values["seed"], **values}
    return json.dumps(values, allow_nan=False, separators=(",", ":")).encode()


def write_archives(out: Path, records: Iterable[Mapping[str, Any]]) -> list[Path]:
    """Write the records into an archive for each data set, each in one step; return the paths.

    An archive whose content stays the same is not written again. Archives that none of the records belong to are left.
    """
    groups: dict[str, dict[Key, bytes]] = defaultdict(dict)
    for values in records:
        groups[values["config"]["data"]["name"]][values["digest"], values["seed"]] = line_of(values)
    written = []
    for name, lines in sorted(groups.items()):
        path = out / "runs" / f"{name}{SUFFIX}"
        content = b"".join(lines[key] + b"\n" for key in sorted(lines))
        if not path.exists() or lzma.decompress(path.read_bytes()) != content:
            write_bytes(path, lzma.compress(content, preset=PRESET))
        written.append(path)
    return written
