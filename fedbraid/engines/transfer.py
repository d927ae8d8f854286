"""Copies between the host and the device."""

from __future__ import annotations

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
