"""Layers that stay fast when a stack gives every client weights of its own: convolutions, and GroupNorm.

Libraries run such a stack as a grouped convolution, which on GPUs is several times slower than its arithmetic, and
GroupNorm in pieces, between copies from one layout to another. These layers take the place of a network's own in the
stack, and go to `conv.py` and `norm.py` under `torch.func.vmap`.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from fedbraid.engines.kernels import conv, norm
from fedbraid.engines.kernels.conv import Kind, Pair
from fedbraid.engines.kernels.norm import Groups
from fedbraid.models.convolutional import PooledConv2d

Dims = tuple[int | None, ...]


class StackConv2d(nn.Conv2d):
    """A convolution by kernels of our own; it may stand for its pooling and ReLU too."""

    kind: Kind

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = ClientConv.apply(x, self.weight, self.bias, self.kind)[0]  # type: ignore[no-untyped-call]
        return made


class StackGroupNorm(nn.GroupNorm):
    """GroupNorm by kernels of our own, where it is of images; it may stand for the ReLU after it too."""

    groups: Groups

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            return relu(super().forward(x)) if self.groups.relu else super().forward(x)
        made: Tensor = ClientNorm.apply(x, self.weight, self.bias, self.groups)[0]  # type: ignore[no-untyped-call]
        return made


def for_stacks(module: nn.Module, fine: bool = True) -> nn.Module:
    """A copy of `module` whose layers are fast in a stack, where they are of a kind that can be.

    Without `fine` the convolutions' products are of bfloat16, with sums in float32.
    """
    module = copy.deepcopy(module)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d) and type(layer) in (nn.Conv2d, PooledConv2d) and _is_plain(layer):
            kind = Kind(layer.stride[0], int(layer.padding[0]), isinstance(layer, PooledConv2d), fine)
            layer.__class__ = StackConv2d
            layer.kind = kind  # type: ignore[assignment]
        elif type(layer) is nn.GroupNorm and layer.affine:
            groups = Groups(layer.num_groups, layer.eps)
            layer.__class__ = StackGroupNorm
            layer.groups = groups  # type: ignore[assignment]
    _join_relu(module)
    return module


def _join_relu(module: nn.Module) -> None:
    """ReLU that follows a norm in a sequence becomes part of it, unless the norm stands elsewhere too."""
    uses = Counter(layer for _, layer in module.named_modules(remove_duplicate=False))
    for layers in module.modules():
        if not isinstance(layers, nn.Sequential):
            continue
        for i, (layer, after) in enumerate(pairwise(layers)):
            if isinstance(layer, StackGroupNorm) and type(after) is nn.ReLU and uses[layer] == 1:
                layer.groups = replace(layer.groups, relu=True)
                layers[i + 1] = nn.Identity()


def _is_plain(layer: nn.Conv2d) -> bool:
    """One stride, one padding of zeros, nothing dilated or grouped."""
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros" or layer.groups != 1 or layer.dilation != (1, 1):
        return False
    square = len({*layer.stride}) == len({*layer.padding}) == len({*layer.kernel_size}) == 1
    return square and layer.padding[0] < layer.kernel_size[0]


class ClientConv(torch.autograd.Function):
    """(x, w, b) -> the outputs, and what the way back needs: chosen corners, patches. It has no second derivative."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, kind: Kind) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in conv.forward(x[None], w[None], None if b is None else b[None], kind))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w, b, ctx.kind = inputs
        ctx.size, ctx.biased = (x.shape[-2], x.shape[-1]), b is not None
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # or zeros are written for the outputs that have no gradient
        ctx.save_for_backward(w, *output[1:])

    @staticmethod
    def backward(ctx: Any, d: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if d is None:
            return None, None, None, None
        wanted = ctx.needs_input_grad[0]
        made = _Gradients.apply(  # type: ignore[no-untyped-call]
            d, *ctx.saved_tensors, ctx.size, ctx.kind, wanted, ctx.biased
        )
        return made[0] if wanted else None, made[1], made[2] if ctx.biased else None, None

    @staticmethod
    def vmap(info: Any, dims: Dims, x: Tensor, w: Tensor, b: Tensor | None, kind: Kind) -> Any:
        x, w = _leading(x, dims[0], info.batch_size), _leading(w, dims[1], info.batch_size)
        b = None if b is None else _leading(b, dims[2], info.batch_size)
        return conv.forward(x, w, b, kind), (0, 0, 0)


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(
        d: Tensor, w: Tensor, chosen: Tensor, numbers: Tensor, size: Pair, kind: Kind, wanted: bool, biased: bool
    ) -> tuple[Tensor, ...]:
        made = conv.gradients(d[None], w[None], chosen[None], numbers[None], size, kind, wanted, biased)
        return tuple(t[0] for t in made)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: Dims, *given: Any) -> Any:
        d, w, chosen, numbers = (_leading(t, dim, info.batch_size) for t, dim in zip(given[:4], dims, strict=False))
        return conv.gradients(d, w, chosen, numbers, *given[4:]), (0, 0, 0)


class ClientNorm(torch.autograd.Function):
    """(x, gamma, beta) -> the outputs, and the statistics for the way back. It has no second derivative."""

    @staticmethod
    def forward(x: Tensor, gamma: Tensor, beta: Tensor, groups: Groups) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in norm.forward(x[None], gamma[None], beta[None], groups))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.groups = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, output[1])

    @staticmethod
    def backward(ctx: Any, d: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        if d is None:
            return None, None, None, None
        return *_NormGradients.apply(d, *ctx.saved_tensors, ctx.groups), None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, dims: Dims, *given: Any) -> Any:
        x, gamma, beta = (_leading(t, dim, info.batch_size) for t, dim in zip(given[:3], dims, strict=False))
        return norm.forward(x, gamma, beta, given[3]), (0, 0)


class _NormGradients(torch.autograd.Function):
    @staticmethod
    def forward(d: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, stats: Tensor, groups: Groups) -> tuple[Tensor, ...]:
        made = norm.gradients(d[None], x[None], gamma[None], beta[None], stats[None], groups)
        return tuple(t[0] for t in made)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: Dims, *given: Any) -> Any:
        d, x, gamma, beta, stats = (_leading(t, dim, info.batch_size) for t, dim in zip(given[:5], dims, strict=False))
        return norm.gradients(d, x, gamma, beta, stats, given[5]), (0, 0, 0)


def _leading(t: Tensor, dim: int | None, clients: int) -> Tensor:
    return t.expand(clients, *t.shape) if dim is None else t.movedim(dim, 0)
