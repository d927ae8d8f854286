"""Calls of a compiled library. ctypes releases the interpreter lock during a call, so threads run side by side."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbraid.core.round import nothing
from fedbraid.engines.codegen.libraries import NotCompiled
from fedbraid.engines.cpu import one_thread


class CompiledTraining:
    """A loaded library and its threads: `workers - 1` helpers and the caller's own."""

    def __init__(self, path: Path, scratch: int, workers: int) -> None:
        try:
            self._train = ctypes.CDLL(str(path)).train
        except (OSError, AttributeError) as error:
            raise NotCompiled(f"the library cannot be loaded ({error})") from error
        self._train.restype = None
        self._train.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * 7]
        self._blas = _blas("sgemm_"), _blas("dgemm_")
        # torch allocates with 64-byte alignment. Vectorised loops peel until they are aligned, so that scratch memory
        # of any other alignment could change the order of sums, and results would depend on the thread.
        self._scratch = [torch.empty(max(scratch, 1), dtype=torch.uint8) for _ in range(workers)]
        self._helpers = ThreadPoolExecutor(max(1, workers - 1), "fedbraid", lambda: torch.set_num_threads(1))

    def __call__(
        self,
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        pointers: NDArray[np.int64],
        meanwhile: Callable[[], None] = nothing,
    ) -> None:
        """Train K clients: client k takes the rows `starts[k]` to `stops[k]` of the plan.

        The caller's thread runs `meanwhile` first and then takes clients too. The caller must keep the tensors behind
        `pointers` [K, ...] alive until this returns: the library has only addresses.
        """
        taken = np.zeros(1, dtype=np.int64)
        arrays = [np.ascontiguousarray(a, dtype=np.int64) for a in (taken, starts, stops, pointers)]
        given = len(starts), *(a.ctypes.data for a in arrays)
        begun: SimpleQueue[None] = SimpleQueue()

        def help_with(scratch: Tensor) -> None:
            begun.put(None)
            self._train(*given, scratch.data_ptr(), *self._blas)

        helpers = [self._helpers.submit(help_with, scratch) for scratch in self._scratch[1:]]
        try:
            # Wait until each helper is about to enter the library. Otherwise `meanwhile`, which holds the interpreter
            # lock, would keep helpers from starting, and one thread would train alone.
            for _ in helpers:
                begun.get()
            meanwhile()
            with one_thread():
                self._train(*given, self._scratch[0].data_ptr(), *self._blas)
        finally:
            wait(helpers)


def _blas(name: str) -> int:
    """Return the address of a BLAS function in torch's own library. Raises NotCompiled if there is none."""
    try:
        place = next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))
        return ctypes.cast(getattr(ctypes.CDLL(str(place)), name), ctypes.c_void_p).value or 0
    except (StopIteration, OSError, AttributeError) as error:
        raise NotCompiled(f"torch has no {name} here") from error
