"""Fully connected layers of a whole stack of clients, each with weights of its own.

The products are the library's; gradients of weights are written where they belong. Inputs are [clients, batch, in],
weights [clients, out, in].
"""

from __future__ import annotations

import torch
from torch import Tensor


def forward(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    return x @ w.transpose(1, 2) if b is None else torch.baddbmm(b[:, None], x, w.transpose(1, 2))


def gradients(d: Tensor, x: Tensor, w: Tensor, wanted: bool, slope: Tensor, bias: Tensor | None) -> Tensor:
    """Of the inputs (where wanted); those of the weights and, where there are any, the biases are written."""
    torch.bmm(d.transpose(1, 2), x, out=slope)
    if bias is not None:
        torch.sum(d, 1, out=bias)
    return d @ w if wanted else d.new_empty(len(d), 0)
