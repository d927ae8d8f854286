"""A compiled library, called without Python: the lock of the interpreter is free while it runs."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

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
        # torch aligns memory, so that results do not depend on whose it was
        self._scratch = [torch.empty(max(scratch, 1), dtype=torch.uint8) for _ in range(workers)]
        self._threads = ThreadPoolExecutor(workers, "fedbraid", initializer=lambda: torch.set_num_threads(1))

    def __call__(self, start: int, stops: NDArray[np.int64], pointers: NDArray[np.int64]) -> None:
        """Rows `start` until `stops[k]` of the plan for each client k, side by side; `pointers` [K, ...] to its memory.

        Whoever calls holds the memory until this returns.
        """
        first, row = pointers.ctypes.data, pointers.strides[0]
        waiting: SimpleQueue[int] = SimpleQueue()
        for k in range(len(stops)):
            waiting.put(k)

        def some(scratch: Tensor) -> None:
            with suppress(Empty):
                while True:
                    k = waiting.get_nowait()
                    self._train(start, int(stops[k]), first + k * row, scratch.data_ptr(), *self._blas)

        for _ in self._threads.map(some, self._scratch):
            pass


def _blas(name: str) -> int:
    """Where a function of torch's own BLAS lies."""
    try:
        place = next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))
        return ctypes.cast(getattr(ctypes.CDLL(str(place)), name), ctypes.c_void_p).value or 0
    except (StopIteration, OSError, AttributeError) as error:
        raise NotCompiled(f"torch has no {name} here") from error
