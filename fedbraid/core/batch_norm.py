"""Batch normalisation over the real samples of a padded batch.

The stack pads every client's batch to one width. torch's kernel would count the padding in means and variances; here
only samples with mask 1 count, so that each client normalises as it would alone. Tensors are those of one client;
`torch.func.vmap` adds the client axis to all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


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
