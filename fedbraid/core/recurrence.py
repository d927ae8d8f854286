"""The LSTM recurrence written out, with its derivative in closed form.

torch has no batching rule for its LSTM kernels; this formula is made of operations that have one.

a_t = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh, split into i, f, g, o
c_t = σ(f) c_{t-1} + σ(i) tanh(g)
h_t = σ(o) tanh(c_t)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Recurrence(torch.autograd.Function):
    """One layer through time, given what its inputs add to the gates: (a [T, B, 4 H], W_hh) -> h [T, B, H].

    The derivative in closed form: what does not depend on the step before, W_hh's gradient above all, is one operation
    for all steps. Forward and back take three fifths of the operations that autograd would take step by step.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        h = c = inputs.new_zeros(inputs.shape[1], weight.shape[1])
        steps = []
        for from_inputs in inputs.unbind():
            a = from_inputs + h @ weight.mT
            sigmoid, g = a.sigmoid(), a.chunk(4, -1)[2].tanh()  # g's own σ is not used: cheaper than leaving it out
            i, f, _, o = sigmoid.chunk(4, -1)
            c = f * c + i * g
            h = o * c.tanh()
            steps.append((h, c, g, sigmoid))
        return tuple(map(torch.stack, zip(*steps, strict=True)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[1], *output)

    @staticmethod
    def backward(ctx: Any, dhs: Tensor, *others: Tensor | None) -> tuple[Tensor, Tensor]:
        if any(d is not None for d in others):  # nothing but the derivative of this function depends on them
            raise NotImplementedError("stacked LSTM layers have no second derivative; use the loop engine")
        weight, hs, cs, g, sigmoids = ctx.saved_tensors
        i, f, _, o = sigmoids.chunk(4, -1)
        squashed = cs.tanh()
        before = torch.cat([torch.zeros_like(cs[:1]), cs[:-1]])
        # how i, f and g move c, and how o moves h, each through its own σ or tanh
        slopes = torch.stack([g * i * (1 - i), before * f * (1 - f), i * (1 - g * g), squashed * o * (1 - o)], 2)
        through = o * (1 - squashed * squashed)  # how c moves h
        dh = dc = torch.zeros_like(hs[0])
        das = []
        each = zip(dhs.unbind(), slopes.unbind(), through.unbind(), f.unbind(), strict=True)
        for dh_outside, slope, c_to_h, kept in reversed(list(each)):
            dh = dh_outside + dh
            dc = dc + dh * c_to_h
            da = (torch.stack([dc, dc, dc, dh], 1) * slope).flatten(1)
            das.append(da)
            dh, dc = da @ weight, dc * kept
        da = torch.stack(das[::-1])
        return da, da[1:].flatten(0, 1).mT @ hs[:-1].flatten(0, 1)
