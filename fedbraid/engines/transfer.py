"""Copies between the host and the device."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_device(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return `values` as a tensor on `device`, without waiting for a GPU.

    Floating-point values are converted to `dtype` if it is given; other types are kept. The copy to a GPU starts from
    pinned memory, because a copy from pageable memory blocks the host until it has ended.
    """
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.as_tensor(values)
    if dtype is not None and tensor.is_floating_point():
        tensor = tensor.to(dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class HostCopy:
    """An asynchronous copy to the host: queued on the current stream now, waited for in `numpy`.

    The host can start the next round before it reads the results of the last. Without the event, `numpy` could return
    memory that the GPU has not written yet.
    """

    def __init__(self, values: Tensor) -> None:
        self._values = values.to("cpu", non_blocking=True)
        self._arrival = None
        if values.is_cuda:
            self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrival.record()

    def numpy(self) -> np.ndarray:
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._values.numpy()


class RoundClock:
    """The seconds that a round takes, on a GPU by the device's own clock.

    The host runs ahead of a GPU: it launches a round in a fraction of the time that the round takes, and reads lines of
    the log late and several at once. Differences of the host's clock would give some rounds nearly no time, and others
    that of two. Events in the stream are passed when the work before them is done.
    """

    def __init__(self, device: torch.device) -> None:
        """Start the clock."""
        self._marks: list[torch.cuda.Event] | None = [] if device.type == "cuda" else None
        self._began = self._ended = perf_counter()
        self._mark()

    def stop(self) -> None:
        """Stop the clock after everything that has been launched."""
        self._mark()

    def seconds(self, last_end: float) -> tuple[float, float]:
        """Return the seconds of the round, and the host's time at its end; wait for the end on a GPU.

        On a CPU results may be computed when they are read: the round ends now, and began no sooner than `last_end`,
        when the last one ended.
        """
        if self._marks is None:
            self._ended = perf_counter()
            return self._ended - max(self._began, last_end), self._ended
        begin, end = self._marks
        end.synchronize()
        return begin.elapsed_time(end) / 1000, perf_counter()

    def _mark(self) -> None:
        if self._marks is not None:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)
