"""Batch normalisation over the real samples of a padded batch.

The stack pads every client's batch to one width. torch's kernel would count the padding in means and variances; here
only samples with mask 1 count, so that each client normalises as it would alone. Tensors are those of one client;
`torch.func.vmap` adds the client axis to all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm


class MaskedNorm(torch.autograd.Function):
    """(x [B, C, ...], mask [B, 1, ...], count [], eps) -> normalised x, mean [C], variance [C] (biased).

    The derivative in closed form keeps x̂ and 1/σ; autograd of the written-out formula would keep several more tensors
    of the size of x. Outputs at padded samples are 0 and have no gradient: nothing of a real client may depend on them.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mask: Tensor, count: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        axes = [0, *range(2, x.dim())]
        mean = (x * mask).sum(axes, keepdim=True) / count
        away = (x - mean) * mask  # two passes: sums of squares about 0 would cancel where the mean is large
        variance = (away * away).sum(axes, keepdim=True) / count
        rate = (variance + eps).rsqrt()
        return away * rate, mean.flatten(), variance.flatten(), rate

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, mask, count, _ = inputs
        unit, mean, variance, rate = output
        ctx.mark_non_differentiable(mean, variance, rate)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(unit, rate, mask, count)

    @staticmethod
    def backward(ctx: Any, d: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None, None]:
        if d is None:
            return None, None, None, None
        unit, rate, mask, count = ctx.saved_tensors
        axes = [0, *range(2, d.dim())]
        d = d * mask
        level = d.sum(axes, keepdim=True) / count
        along = (d * unit).sum(axes, keepdim=True) / count
        return rate * mask * (d - level - unit * along), None, None, None


def masked_batch_norm(
    x: Tensor,
    mask: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """Return `x` normalised by the statistics of its real samples; update the running statistics in place.

    Args:
        x: [B, C, ...] inputs, or [n B, C, ...] with n rows for each sample in a row.
        mask: [B] 1 for real samples, 0 for padding.
        running_mean, running_var: [C] or None.
        weight, bias: [C] or None.
        momentum: weight of this batch in the running statistics.
        eps: added to the variance.

    A client whose batch is all padding (an idle step) divides by 1 instead of 0; its state is discarded afterwards.
    """
    rows = mask.repeat_interleave(len(x) // len(mask)) if len(x) != len(mask) else mask
    shape = (1, -1, *(1,) * (x.dim() - 2))
    inner = x[0, 0].numel()
    count = (rows.sum() * inner).clamp(min=1)
    y: Tensor
    y, mean, variance, _ = MaskedNorm.apply(x, rows.reshape(-1, *(1,) * (x.dim() - 1)), count, eps)  # type: ignore[no-untyped-call]
    if running_mean is not None and running_var is not None:
        unbiased = variance.detach() * (count / (count - 1).clamp(min=1))
        running_mean.copy_((1 - momentum) * running_mean + momentum * mean.detach())
        running_var.copy_((1 - momentum) * running_var + momentum * unbiased)
    if weight is not None:
        y = y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def frozen_batch_norm(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Return `x` [N, C, ...] normalised by running statistics [C]: one scale and one shift for each channel."""
    scale = (variance + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    shape = (1, -1, *(1,) * (x.dim() - 2))
    return x * scale.reshape(shape) + shift.reshape(shape)


class CumulativeNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm of momentum=None: running statistics are the mean over all batches.

    torch divides by a counter as a Python number, which cannot differ between stacked clients, and whose integer cannot
    be averaged. Here the counter is a float buffer: it travels with the statistics that it belongs to, and the server's
    is the mean of the clients'.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.num_batches_tracked is None:
            return super().forward(input)
        assert self.running_mean is not None and self.running_var is not None
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked
        mean, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        y = batch_norm(input, mean, variance, self.weight, self.bias, True, 1.0, self.eps)  # momentum 1: this batch's
        self.running_mean.add_(share * (mean - self.running_mean))
        self.running_var.add_(share * (variance - self.running_var))
        return y


class CumulativeNorm1d(CumulativeNorm, nn.BatchNorm1d):
    pass


class CumulativeNorm2d(CumulativeNorm, nn.BatchNorm2d):
    pass


class CumulativeNorm3d(CumulativeNorm, nn.BatchNorm3d):
    pass


CUMULATIVE: dict[type[nn.Module], type[CumulativeNorm]] = {
    nn.BatchNorm1d: CumulativeNorm1d,
    nn.BatchNorm2d: CumulativeNorm2d,
    nn.BatchNorm3d: CumulativeNorm3d,
}


def make_cumulative(module: nn.Module) -> nn.Module:
    """Replace the class of layers with momentum=None in place, and make their counters floats; return the module."""
    for layer in module.modules():
        if type(layer) in CUMULATIVE and layer.momentum is None and layer.num_batches_tracked is not None:
            layer.num_batches_tracked = layer.num_batches_tracked.to(layer.running_mean.dtype)
            layer.__class__ = CUMULATIVE[type(layer)]
    return module
