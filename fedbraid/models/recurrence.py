"""LSTM layers that run one client by torch's kernels and many clients at once by a formula written out.

a_t = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh, split into i, f, g, o
c_t = σ(f) c_{t-1} + σ(i) tanh(g)
h_t = σ(o) tanh(c_t)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class Lstm(nn.Module):
    """Stacked LSTM layers with the parameters of `nn.LSTM`, of the same names, order and initial distribution.

    torch has no batching rule for its LSTM kernels. So they run where no function transform is at work (the loop,
    evaluation); under `torch.func.vmap` (the stack) the recurrence runs as written above, with its derivative in closed
    form. Both agree to rounding. `benchmarks/lstm_stack.py` compares their speed.
    """

    def __init__(self, inputs: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.hidden, self.layers = hidden, layers
        for layer in range(layers):
            shapes = {
                "weight_ih": (4 * hidden, hidden if layer else inputs),
                "weight_hh": (4 * hidden, hidden),
                "bias_ih": (4 * hidden,),
                "bias_hh": (4 * hidden,),
            }
            for name, shape in shapes.items():
                start = torch.empty(shape).uniform_(-(hidden**-0.5), hidden**-0.5)
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(start))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, inputs] -> h of the last layer, [B, T, hidden]; h and c begin with zeros."""
        if torch._C._are_functorch_transforms_active():
            return self._written_out(x)
        zeros = x.new_zeros(self.layers, len(x), self.hidden)
        weights = [weight for layer in range(self.layers) for weight in self._weights(layer)]
        # dropout 0, so that `train` only says whether cuDNN keeps what a derivative needs; not bidirectional
        train = torch.is_grad_enabled()
        with _quiet_cudnn() if x.is_cuda else nullcontext():
            h: Tensor = torch.lstm(x, (zeros, zeros), weights, True, self.layers, 0.0, train, False, True)[0]
        return h

    def _written_out(self, x: Tensor) -> Tensor:
        h = x.transpose(0, 1)
        for layer in range(self.layers):
            weight_ih, weight_hh, bias_ih, bias_hh = self._weights(layer)
            h = Recurrence.apply(linear(h, weight_ih, bias_ih + bias_hh), weight_hh)[0]  # type: ignore[no-untyped-call]
        return h.transpose(0, 1)

    def _weights(self, layer: int) -> tuple[Tensor, ...]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return tuple(getattr(self, f"{name}_l{layer}") for name in names)


@contextmanager
def _quiet_cudnn() -> Iterator[None]:
    """Without its warning that it copies weights together at each call: they are parts of the model's one vector."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights")
        yield


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
