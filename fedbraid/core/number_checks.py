"""Numbers that a run can compute with, whatever its precision."""

from __future__ import annotations

import torch

SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
FINITE = f"finite in float32 (at most {LARGEST:.2g})"


def is_finite(value: float) -> bool:
    """Whether a number, a whole one of any length too, stays finite where it becomes part of a tensor."""
    return abs(value) <= LARGEST
