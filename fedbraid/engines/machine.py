"""A compiled library, called without Python: the lock of the interpreter is free while it runs."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbraid.engines.libraries import NotCompiled


class Machine:
    """A library in memory, and as many threads as may call it at once."""

    def __init__(self, path: Path, scratch: int, workers: int) -> None:
        try:
            self._train = ctypes.CDLL(str(path)).train
        except (OSError, AttributeError) as error:
            raise NotCompiled(f"the library cannot be loaded ({error})") from error
        self._train.restype = None
        self._train.argtypes = [ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 4]
        self._blas = _blas("sgemm_"), _blas("dgemm_")
        self._scratch: SimpleQueue[Tensor] = SimpleQueue()
        for _ in range(workers):  # torch aligns memory, so that results do not depend on whose it was
            self._scratch.put(torch.empty(max(scratch, 1), dtype=torch.uint8))
        self._threads = ThreadPoolExecutor(workers, "fedbraid", initializer=lambda: torch.set_num_threads(1))

    def __call__(self, start: int, stops: NDArray[np.int64], pointers: NDArray[np.int64]) -> None:
        """Rows `start` until `stops[k]` of the plan for each client k, side by side; `pointers` [K, ...] to its memory.

        Whoever calls holds the memory until this returns.
        """
        row = pointers.strides[0]

        def one(k: int) -> None:
            scratch = self._scratch.get()
            self._train(start, int(stops[k]), pointers.ctypes.data + k * row, scratch.data_ptr(), *self._blas)
            self._scratch.put(scratch)

        for _ in self._threads.map(one, range(len(stops))):
            pass


def _blas(name: str) -> int:
    """Where a function of torch's own BLAS lies."""
    try:
        place = next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))
        return ctypes.cast(getattr(ctypes.CDLL(str(place)), name), ctypes.c_void_p).value or 0
    except (StopIteration, OSError, AttributeError) as error:
        raise NotCompiled(f"torch has no {name} here") from error
