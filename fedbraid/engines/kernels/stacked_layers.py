"""Layers that stay fast when every client of a stack has its own weights.

Libraries run a stack's convolutions in groups, which on GPUs is several times slower than their arithmetic, and
GroupNorm in pieces, between copies from one layout to another. These layers replace a network's own in the
stack, and call `conv.py`, `linear.py` and `norm.py` under `torch.func.vmap`. Gradients of weights are written where
`gradient_buffer.py` says.

Each layer is an `autograd.Function` with a `vmap` rule, whose backward pass is a second Function with its own rule:
`vmap(grad(...))` batches the backward pass too, and a single Function would reach it without the client axis.
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

from fedbraid.engines.kernels import conv, linear, norm
from fedbraid.engines.kernels.convolution_spec import Convolution, Pair
from fedbraid.engines.kernels.gradient_buffer import GradientBuffer, GradientTarget
from fedbraid.engines.kernels.norm import GroupNormSpec
from fedbraid.models.convolutional import PooledConv2d

Dims = tuple[int | None, ...]


class StackConv2d(nn.Conv2d):
    """A convolution by this package's kernels, with pooling and ReLU fused where `kind` says so."""

    kind: Convolution
    name: str
    buffer: GradientBuffer

    def forward(self, x: Tensor) -> Tensor:
        target = self.buffer.target(self.name)
        made: Tensor = ClientConv.apply(x, self.weight, self.bias, self.kind, target)[0]  # type: ignore[no-untyped-call]
        return made


class StackLinear(nn.Linear):
    """A fully connected layer that writes its gradients into the buffer, for inputs [B, in]."""

    name: str
    buffer: GradientBuffer

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            return super().forward(x)
        target = self.buffer.target(self.name)
        made: Tensor = ClientLinear.apply(x, self.weight, self.bias, target)  # type: ignore[no-untyped-call]
        return made


class StackGroupNorm(nn.GroupNorm):
    """GroupNorm of images by this package's kernels, with the ReLU after it fused where `groups` says so."""

    groups: GroupNormSpec

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            return relu(super().forward(x)) if self.groups.relu else super().forward(x)
        made: Tensor = ClientNorm.apply(x, self.weight, self.bias, self.groups)[0]  # type: ignore[no-untyped-call]
        return made


def for_stacks(module: nn.Module, fine: bool = True, buffer: GradientBuffer | None = None) -> nn.Module:
    """Return a copy of `module` with supported layers replaced by the stack's own.

    Without `fine` the convolutions' products are of bfloat16, with sums in float32. `room` is where gradients go.
    """
    module, buffer = copy.deepcopy(module), buffer or GradientBuffer()
    for name, layer in module.named_modules():
        if any(not p.requires_grad for p in layer.parameters(recurse=False)):
            continue  # weights that all clients share: torch's rule folds clients into the batch, which is faster
        if isinstance(layer, nn.Conv2d) and type(layer) in (nn.Conv2d, PooledConv2d) and _is_plain(layer):
            kind = Convolution(layer.stride[0], int(layer.padding[0]), isinstance(layer, PooledConv2d), fine)
            _become(layer, StackConv2d, kind=kind, name=name, buffer=buffer)
        elif type(layer) is nn.Linear:
            _become(layer, StackLinear, name=name, buffer=buffer)
        elif type(layer) is nn.GroupNorm and layer.affine:
            _become(layer, StackGroupNorm, groups=GroupNormSpec(layer.num_groups, layer.eps))
    _join_relu(module)
    return module


def _become(layer: nn.Module, other: type[nn.Module], **more: Any) -> None:
    layer.__class__ = other
    for name, value in more.items():
        setattr(layer, name, value)


def _join_relu(module: nn.Module) -> None:
    """Fuse a ReLU into the norm before it in a sequence, unless the norm is used elsewhere too."""
    uses = Counter(layer for _, layer in module.named_modules(remove_duplicate=False))
    for layers in module.modules():
        if not isinstance(layers, nn.Sequential):
            continue
        for i, (layer, after) in enumerate(pairwise(layers)):
            if isinstance(layer, StackGroupNorm) and type(after) is nn.ReLU and uses[layer] == 1:
                layer.groups = replace(layer.groups, relu=True)
                layers[i + 1] = nn.Identity()


def _is_plain(layer: nn.Conv2d) -> bool:
    """Return whether a convolution is square, zero-padded, not dilated and not grouped."""
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros" or layer.groups != 1 or layer.dilation != (1, 1):
        return False
    square = len({*layer.stride}) == len({*layer.padding}) == len({*layer.kernel_size}) == 1
    return square and layer.padding[0] < layer.kernel_size[0]


class ClientConv(torch.autograd.Function):
    """(x, w, b) -> outputs, and for the backward pass the chosen corners and prepared inputs. No second derivative."""

    @staticmethod
    def forward(
        x: Tensor, w: Tensor, b: Tensor | None, kind: Convolution, target: GradientTarget
    ) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in conv.forward(x[None], w[None], None if b is None else b[None], kind))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w, b, ctx.kind, ctx.target = inputs
        ctx.size, ctx.biased = (x.shape[-2], x.shape[-1]), b is not None
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # or zeros are written for the outputs that have no gradient
        _, chosen, ready = output
        ctx.save_for_backward(w, chosen, ready if ready.numel() else x)

    @staticmethod
    def backward(ctx: Any, d: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if d is None:
            return None, None, None, None, None
        wanted = ctx.needs_input_grad[0]
        made = _Gradients.apply(  # type: ignore[no-untyped-call]
            d, *ctx.saved_tensors, ctx.size, ctx.kind, wanted, ctx.biased, ctx.target
        )
        return made[0] if wanted else None, made[1], made[2] if ctx.biased else None, None, None

    @staticmethod
    def vmap(
        info: Any, dims: Dims, x: Tensor, w: Tensor, b: Tensor | None, kind: Convolution, target: GradientTarget
    ) -> Any:
        x, w = _leading(x, dims[0], info.batch_size), _leading(w, dims[1], info.batch_size)
        b = None if b is None else _leading(b, dims[2], info.batch_size)
        return conv.forward(x, w, b, kind), (0, 0, 0)


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(
        d: Tensor,
        w: Tensor,
        chosen: Tensor,
        ready: Tensor,
        size: Pair,
        kind: Convolution,
        wanted: bool,
        biased: bool,
        target: GradientTarget,
    ) -> tuple[Tensor, ...]:
        made = _gradients(d[None], w[None], chosen[None], ready[None], size, kind, wanted, biased, target)
        return tuple(t[0] for t in made)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: Dims, *given: Any) -> Any:
        d, w, chosen, ready = (_leading(t, dim, info.batch_size) for t, dim in zip(given[:4], dims, strict=False))
        return _gradients(d, w, chosen, ready, *given[4:]), (0, 0, 0)


def _gradients(
    d: Tensor,
    w: Tensor,
    chosen: Tensor,
    ready: Tensor,
    size: Pair,
    kind: Convolution,
    wanted: bool,
    biased: bool,
    target: GradientTarget,
) -> tuple[Tensor, Tensor, Tensor]:
    w_gradient, bias = target.weight(w), target.bias(w[:, :, 0, 0, 0]) if biased else None
    back = conv.gradients(d, w, chosen, ready, size, kind, wanted, w_gradient, bias)
    return back, w_gradient, w_gradient.new_empty(len(w), 0) if bias is None else bias


class ClientLinear(torch.autograd.Function):
    """(x, w, b) -> the outputs. It has no second derivative."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, target: GradientTarget) -> Tensor:
        return linear.forward(x[None], w[None], None if b is None else b[None])[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, b, ctx.target = inputs
        ctx.biased = b is not None
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[0]
        made = _LinearGradients.apply(d, *ctx.saved_tensors, wanted, ctx.biased, ctx.target)  # type: ignore[no-untyped-call]
        return made[0] if wanted else None, made[1], made[2] if ctx.biased else None, None

    @staticmethod
    def vmap(info: Any, dims: Dims, x: Tensor, w: Tensor, b: Tensor | None, target: GradientTarget) -> Any:
        x, w = _leading(x, dims[0], info.batch_size), _leading(w, dims[1], info.batch_size)
        return linear.forward(x, w, None if b is None else _leading(b, dims[2], info.batch_size)), 0


class _LinearGradients(torch.autograd.Function):
    @staticmethod
    def forward(
        d: Tensor, x: Tensor, w: Tensor, wanted: bool, biased: bool, target: GradientTarget
    ) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in _linear_gradients(d[None], x[None], w[None], wanted, biased, target))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: Dims, *given: Any) -> Any:
        d, x, w = (_leading(t, dim, info.batch_size) for t, dim in zip(given[:3], dims, strict=False))
        return _linear_gradients(d, x, w, *given[3:]), (0, 0, 0)


def _linear_gradients(
    d: Tensor, x: Tensor, w: Tensor, wanted: bool, biased: bool, target: GradientTarget
) -> tuple[Tensor, Tensor, Tensor]:
    w_gradient, bias = target.weight(w), target.bias(w[:, :, 0]) if biased else None
    back = linear.gradients(d, x, w, wanted, w_gradient, bias)
    return back, w_gradient, w_gradient.new_empty(len(w), 0) if bias is None else bias


class ClientNorm(torch.autograd.Function):
    """(x, gamma, beta) -> outputs, and the statistics for the backward pass. No second derivative."""

    @staticmethod
    def forward(x: Tensor, gamma: Tensor, beta: Tensor, groups: GroupNormSpec) -> tuple[Tensor, ...]:
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
    def forward(
        d: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, stats: Tensor, groups: GroupNormSpec
    ) -> tuple[Tensor, ...]:
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
