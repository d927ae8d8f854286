"""A compiled library, called without Python: the lock of the interpreter is free while it runs.

Libraries speak the C interface of torch's ahead-of-time compiler. Tensors go in and come out as handles that the
callee owns, so nothing has to be freed here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule_of = ctypes.pythonapi.PyCapsule_New
_capsule_of.restype, _capsule_of.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Machine:
    """A library in memory, and as many threads as may call it at once."""

    def __init__(self, path: Path, results: int, workers: int) -> None:
        """Raises OSError where the file is no library that can be loaded here."""
        self._library = ctypes.CDLL(str(path))
        self._results = results
        self._container = ctypes.c_void_p()
        try:
            create = self._library.AOTInductorModelContainerCreateWithDevice
            self._run = self._library.AOTInductorModelContainerRun
            self._delete = self._library.AOTInductorModelContainerDelete
        except AttributeError as error:
            raise OSError(f"{path} is no compiled training: {error}") from error
        self._check(create(ctypes.byref(self._container), ctypes.c_size_t(workers), b"cpu", None))
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="fedbraid")

    def __call__(self, calls: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """The results of several calls, in the order of the calls; they run side by side."""
        ready = [_handles(tensors) for tensors in calls]
        answers = [(ctypes.c_void_p * self._results)() for _ in calls]
        codes = list(self._threads.map(self._call, ready, answers))
        results = [] if any(codes) else [_tensors(answer) for answer in answers]
        for code in codes:
            self._check(code)
        return results

    def _call(self, ready: ctypes.Array[ctypes.c_void_p], answer: ctypes.Array[ctypes.c_void_p]) -> int:
        code: int = self._run(
            self._container, ready, ctypes.c_size_t(len(ready)), answer, ctypes.c_size_t(len(answer)), None, None
        )
        return code

    def _check(self, code: int) -> None:
        if code:
            raise RuntimeError("compiled local training failed; what happened is on standard error")

    def __del__(self) -> None:
        if getattr(self, "_container", None):
            self._delete(self._container)


def _handles(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    capsules = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))
    return (ctypes.c_void_p * len(capsules))(*(_pointer_of(capsule, None) for capsule in capsules))


def _tensors(handles: Sequence[int]) -> list[Tensor]:
    capsules = [_capsule_of(handle, None, None) for handle in handles]
    return torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(capsules)
