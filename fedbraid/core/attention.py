"""Scaled dot-product attention that knows the client axis.

Attention has no weights, so clients can be part of the batch: [K, B, H, L, E] is [K B, H, L, E], and torch's fused
kernels run once for all clients. torch's own batching rules run the backward pass client by client.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fedbraid.core.keyed_draws import KeyedDraws

Options = tuple[bool, float | None, bool]
"""is_causal, scale, enable_gqa."""


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, is_causal: bool, scale: float | None, gqa: bool
) -> Tensor:
    """Return attention [..., L, Ev] of q [..., L, E], k [..., S, E] and v [..., S, Ev] without dropout.

    `bias` is None, a boolean mask (True takes part) or a tensor that is added to the scores, [..., L, S]. Leading axes
    broadcast as in torch. The result is torch's own; only batching and differentiation are defined here.
    """
    if q.dim() == 2:  # one head of one sample: the client axis needs an axis to be folded into
        return attention(q[None], k[None], v[None], bias, is_causal, scale, gqa)[0]
    if not gqa:
        lead = torch.broadcast_shapes(*(t.shape[:-2] for t in (q, k, v)))  # type: ignore[no-untyped-call]
        q, k, v = (t.expand(*lead, *t.shape[-2:]) for t in (q, k, v))
    made: Tensor = ClientAttention.apply(q, k, v, bias, (is_causal, scale, gqa))  # type: ignore[no-untyped-call]
    return made


def dropped_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float | None,
    gqa: bool,
    p: float,
    draws: KeyedDraws,
) -> Tensor:
    """Return attention with dropout of its weights, written out: fused kernels draw from torch's generator."""
    if gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        lower = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~lower, -torch.inf)
    if bias is not None:
        scores = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias
    return draws.dropout(scores.softmax(-1), p) @ v


class ClientAttention(torch.autograd.Function):
    """(q, k, v, bias, options) -> attention; the backward pass runs the fused kernel again instead of keeping L x S."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, options: Options) -> Tensor:
        return _fused(q, k, v, bias, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q, k, v, bias, ctx.options = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(q, k, v, q.new_empty(0) if bias is None else bias)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias = ctx.saved_tensors
        wants_bias = ctx.has_bias and ctx.needs_input_grad[3]
        given = bias if ctx.has_bias else None
        dq, dk, dv, dbias = _Gradients.apply(d, q, k, v, given, ctx.options, wants_bias)  # type: ignore[no-untyped-call]
        return dq, dk, dv, dbias if wants_bias else None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *given: Any) -> tuple[Tensor, int]:
        clients = info.batch_size
        q, k, v = (_folded(t, dim, clients) for t, dim in zip(given[:3], dims, strict=False))
        bias = _folded_bias(given[3], dims[3], clients, q)
        made = ClientAttention.apply(q, k, v, bias, given[4])  # type: ignore[no-untyped-call]
        return made.unflatten(0, (clients, -1)), 0


class _Gradients(torch.autograd.Function):
    """(d, q, k, v, bias, options, wants_bias) -> gradients of q, k, v and (if wanted, else empty) bias.

    `vmap(grad(...))` batches the backward pass as well, so it is a Function with a rule of its own. Its forward sees
    plain tensors at the end of all transforms, where autograd picks the backward kernel that fits the device.
    """

    @staticmethod
    def forward(
        d: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, options: Options, wants_bias: bool
    ) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            at = q, k, v = tuple(t.detach().requires_grad_() for t in (q, k, v))
            added = bias.detach().requires_grad_() if bias is not None and wants_bias else bias
            out = _fused(q, k, v, added, options)
            wanted = (*at, added) if wants_bias and added is not None else at
            found = torch.autograd.grad(out, wanted, d)
        return (*found, d.new_empty(0))[:4]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("attention in the stack has no second derivative; use the loop engine")

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *given: Any) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        clients, bias, wants_bias = info.batch_size, given[4], given[6]
        d, q, k, v = (_folded(t, dim, clients) for t, dim in zip(given[:4], dims, strict=False))
        full = _folded_bias(bias, dims[4], clients, q, wants_bias)
        found = _Gradients.apply(d, q, k, v, full, given[5], wants_bias)  # type: ignore[no-untyped-call]
        split = [t.unflatten(0, (clients, -1)) for t in found[:3]]
        if not wants_bias:
            return (*split, found[3]), (0, 0, 0, None)
        own = _each(bias, dims[4], clients).shape[1:]  # the bias of one client, which was expanded for its samples
        summed = found[3].unflatten(0, (clients, -1)).sum_to_size((clients, *(1,) * (q.dim() - len(own)), *own))
        return (*split, summed.reshape(clients, *own)), (0, 0, 0, 0)


def _fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, options: Options) -> Tensor:
    is_causal, scale, gqa = options
    return scaled_dot_product_attention(q, k, v, bias, 0.0, is_causal, scale=scale, enable_gqa=gqa)


def _each(t: Tensor, dim: int | None, clients: int) -> Tensor:
    """Return `t` with the client axis first."""
    return t.expand(clients, *t.shape) if dim is None else t.movedim(dim, 0)


def _folded(t: Tensor, dim: int | None, clients: int) -> Tensor:
    """Return [K B, ...]: a tensor [B, ...] of each client with the clients folded into its first axis."""
    return _each(t, dim, clients).flatten(0, 1)


def _folded_bias(bias: Tensor | None, dim: int | None, clients: int, q: Tensor, always: bool = False) -> Tensor | None:
    """Return a bias or mask that broadcasts against scores [K B, ...]; `always` as a copy for each client."""
    if bias is None:
        return None
    axes = bias.dim() - (dim is not None)
    if dim is None and not always and (axes < q.dim() or bias.shape[0] == 1):
        return bias  # the same for all clients and samples: broadcasting needs no copies
    each = _each(bias, dim, clients)
    each = each.reshape(clients, *(1,) * (q.dim() - axes), *each.shape[1:])
    return each.expand(clients, len(q) // clients, *each.shape[2:]).flatten(0, 1)
