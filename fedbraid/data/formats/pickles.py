"""Pickles of arrays, lists and numbers, read without running what a pickle may hide.

A pickle is a programme. Here it is read only if its publisher's checksum vouches for it, and even then it may call
nothing but what puts NumPy's arrays together.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedbraid.data.formats.checksums import md5
from fedbraid.errors import UserError

_RECONSTRUCT = np.empty(0).__reduce__()[0]  # its module has another name in every second release of NumPy
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ALLOWED[module, name]


def read_pickle(path: Path, checksum: str, otherwise: str) -> Any:
    """The object in a file whose MD5 is `checksum`; Python 2's strings become text.

    `otherwise` says what a user whose file is another one can do.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error
    if md5(content) != checksum:
        raise UserError(
            f"{path} is a pickle, which can run code, and not the published one, whose MD5 is {checksum}; {otherwise}"
        )
    return restricted(path, content)


def restricted(path: Path, content: bytes) -> Any:
    """Load a pickle that holds nothing but arrays and Python's plain values."""
    try:
        return _Restricted(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle can fail in any way
        raise UserError(f"{path} is no pickle of plain arrays ({error})") from error
