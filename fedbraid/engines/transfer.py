"""From the host to the device, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_device(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """`values` as a tensor there; a GPU is not waited for, so that the host can work ahead of it.

    `dtype` is what floating-point numbers become; others keep theirs.
    """
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.as_tensor(values)
    if dtype is not None and tensor.is_floating_point():
        tensor = tensor.to(dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class Reading:
    """Numbers on their way to the host: the copy is queued now, behind what makes them, and waited for when read.

    So a host can start the next round before it reads what came of the last.
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
