"""IDX, the format of MNIST and its kin: a magic number that holds type and rank, the sizes, the values (big-endian)."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from fedbraid.data.dataset import Array
from fedbraid.data.formats.checksums import md5
from fedbraid.data.formats.streams import opened
from fedbraid.errors import UserError

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
LIMIT = 2 << 30
"""Bytes of values that a file may promise: four times the largest of these sets (EMNIST by class)."""


def read_idx(path: Path, checksum: str | None = None) -> Array:
    """The array in a file, gzipped or not; `checksum` is the MD5 that its content should have."""
    with opened(path) as stream:
        magic = stream.read(4)
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or not magic[3]:
            raise UserError(f"{path} does not start as an IDX file does; fetch it anew")
        sizes = stream.read(4 * magic[3])
        if len(sizes) < 4 * magic[3]:
            raise UserError(f"{path} ends within its header; fetch it anew")
        dtype, shape = np.dtype(TYPES[magic[2]]), tuple(np.frombuffer(sizes, ">u4").tolist())
        promised = math.prod(shape) * dtype.itemsize
        if promised > LIMIT:
            raise UserError(f"{path} promises {promised:,} bytes, and {LIMIT:,} are the most that are read")
        values = stream.read(promised)
        if len(values) < promised or stream.read(1):
            raise UserError(f"{path} holds fewer or more values than the {shape} that it promises; fetch it anew")
    if checksum is not None and md5(magic, sizes, values) != checksum:
        raise UserError(f"{path} is not the published file (its content's MD5 is not {checksum}); fetch it anew")
    return np.frombuffer(values, dtype).reshape(shape)
