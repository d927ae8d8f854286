"""Fully connected layers of a stack of clients with weights of their own.

The products are torch's; gradients of weights are written into the buffer. Inputs are [clients, batch, in],
weights [clients, out, in].
"""

from __future__ import annotations

import torch
from torch import Tensor


def forward(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    return x @ w.transpose(1, 2) if b is None else torch.baddbmm(b[:, None], x, w.transpose(1, 2))


def gradients(d: Tensor, x: Tensor, w: Tensor, wanted: bool, w_gradient: Tensor, bias: Tensor | None) -> Tensor:
    """Return the gradient of the inputs (empty unless `wanted`); write those of weights and biases in place."""
    torch.bmm(d.transpose(1, 2), x, out=w_gradient)
    if bias is not None:
        torch.sum(d, 1, out=bias)
    return d @ w if wanted else d.new_empty(len(d), 0)
