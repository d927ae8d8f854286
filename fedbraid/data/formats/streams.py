"""Files as bytes and lines, plain or gzipped, with limits on what a file may make of itself."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from fedbraid.errors import UserError

MOST = 8 << 30
"""Bytes that a gzipped file may unpack to: more than any set read here has, less than a disk."""
LONGEST = 1 << 20
"""Bytes of one line: a file without line ends is not read into memory whole."""
GZIPPED = b"\x1f\x8b"


@contextmanager
def opened(path: Path, most: int = MOST) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked where it is gzipped, which its first bytes tell and not its name."""
    try:
        with open(path, "rb") as file:
            packed = file.read(len(GZIPPED)) == GZIPPED
            file.seek(0)
            yield cast(BinaryIO, io.BufferedReader(_Unpacked(file, path, most))) if packed else file
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UserError(f"{path} is a damaged or cut-off gzip file; fetch or pack it anew") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error})") from None


def lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a text file with their ends; a byte-order mark at its start is dropped."""
    with opened(path) as stream:
        number = 0
        while line := stream.readline(LONGEST + 1):
            number += 1
            if len(line) > LONGEST:
                raise UserError(f"{path}, line {number} is longer than {LONGEST:,} bytes; a table has shorter lines")
            yield _decoded(path, number, line, encoding)


def read_all(path: Path, most: int) -> bytes:
    """The content of a file that is needed at once, if it is no larger than `most` bytes."""
    with opened(path, most) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise UserError(f"{path} holds more than {most:,} bytes; cut it into smaller files")
    return content


def _decoded(path: Path, number: int, line: bytes, encoding: str) -> str:
    try:
        text = line.decode(encoding)
    except UnicodeDecodeError as error:
        byte = f"0x{line[error.start]:02x}"
        raise UserError(f"{path}, line {number} has the byte {byte}, which is not {encoding}; save it anew") from None
    return text.removeprefix("\ufeff") if number == 1 else text


class _Unpacked(io.RawIOBase):
    """The content of a gzipped file, up to a limit."""

    def __init__(self, file: BinaryIO, path: Path, most: int) -> None:
        super().__init__()
        self._stream = gzip.GzipFile(fileobj=file)
        self._path, self._most, self._left = path, most, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        count = self._stream.readinto(buffer)  # type: ignore[arg-type]
        self._left -= count
        if self._left < 0:
            raise UserError(f"{self._path} unpacks to more than {self._most:,} bytes, which no such file does")
        return count
