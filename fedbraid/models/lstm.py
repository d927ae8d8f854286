"""LSTM layers that run one client by torch's kernels and many clients at once by a formula written out.

a_t = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh, split into i, f, g, o
c_t = σ(f) c_{t-1} + σ(i) tanh(g)
h_t = σ(o) tanh(c_t)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fedbraid.core.recurrence import Recurrence


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
