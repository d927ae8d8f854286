"""Convolutional layers that stay fast when a stack gives every client weights of its own.

Libraries run such a stack as a grouped convolution, which on GPUs is several times slower than its arithmetic. These
layers take the place of a network's own in the stack, and go to `conv.py` under `torch.func.vmap`.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fedbraid.engines.kernels.conv import Kind, Pair, forward, gradients
from fedbraid.models.convolutional import PooledConv2d

Dims = tuple[int | None, ...]


class StackConv2d(nn.Conv2d):
    """A convolution by kernels of our own; it may stand for its pooling and ReLU too."""

    kind: Kind

    def forward(self, x: Tensor) -> Tensor:
        bias = self.weight.new_zeros(self.out_channels) if self.bias is None else self.bias
        made: Tensor = ClientConv.apply(x, self.weight, bias, self.kind)[0]  # type: ignore[no-untyped-call]
        return made


def for_stacks(module: nn.Module) -> nn.Module:
    """A copy of `module` whose convolutions are fast in a stack, where they are of a kind that can be."""
    module = copy.deepcopy(module)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d) and type(layer) in (nn.Conv2d, PooledConv2d) and _is_plain(layer):
            kind = Kind(layer.stride[0], int(layer.padding[0]), isinstance(layer, PooledConv2d))
            layer.__class__ = StackConv2d
            layer.kind = kind  # type: ignore[assignment]
    return module


def _is_plain(layer: nn.Conv2d) -> bool:
    """One stride, one padding of zeros, nothing dilated or grouped."""
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros" or layer.groups != 1 or layer.dilation != (1, 1):
        return False
    square = len({*layer.stride}) == len({*layer.padding}) == len({*layer.kernel_size}) == 1
    return square and layer.padding[0] < layer.kernel_size[0]


class ClientConv(torch.autograd.Function):
    """(x, w, b) -> the outputs, and what the way back needs: chosen corners, patches. It has no second derivative."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor, kind: Kind) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in forward(x[None], w[None], b[None], kind))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w, _, ctx.kind = inputs
        ctx.size = x.shape[-2], x.shape[-1]
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(w, *output[1:])

    @staticmethod
    def backward(ctx: Any, d: Tensor, *_: Any) -> tuple[Tensor | None, Tensor, Tensor, None]:
        wanted = ctx.needs_input_grad[0]
        made = _Gradients.apply(d, *ctx.saved_tensors, ctx.size, ctx.kind, wanted)  # type: ignore[no-untyped-call]
        return made[0] if wanted else None, made[1], made[2], None

    @staticmethod
    def vmap(info: Any, dims: Dims, x: Tensor, w: Tensor, b: Tensor, kind: Kind) -> Any:
        x, w, b = (_leading(t, dim, info.batch_size) for t, dim in zip((x, w, b), dims, strict=False))
        return forward(x, w, b, kind), (0, 0, 0, 0)


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(
        d: Tensor, w: Tensor, chosen: Tensor, high: Tensor, low: Tensor, size: Pair, kind: Kind, wanted: bool
    ) -> tuple[Tensor, ...]:
        made = gradients(d[None], w[None], chosen[None], high[None], low[None], size, kind, wanted)
        return tuple(t[0] for t in made)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: Dims, *given: Any) -> Any:
        tensors = [_leading(t, dim, info.batch_size) for t, dim in zip(given[:5], dims, strict=False)]
        d, w, chosen, high, low = tensors
        size, kind, wanted = given[5:]
        return gradients(d, w, chosen, high, low, size, kind, wanted), (0, 0, 0)


def _leading(t: Tensor, dim: int | None, clients: int) -> Tensor:
    return t.expand(clients, *t.shape) if dim is None else t.movedim(dim, 0)
