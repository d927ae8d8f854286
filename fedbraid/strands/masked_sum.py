"""A sum that is learned without its parts: additive masks that cancel.

Each pair of clients shares a mask; the one with the smaller number adds it, the other takes it away. Numbers are whole
and arithmetic wraps around at 2⁶⁴, so that a masked vector looks like noise and the sum is exact. Here a pair's mask is
hashed from a secret that clients share and the server never uses; a deployment agrees on keys pair by pair.
"""

import torch
from torch import Tensor


def masked(counts: Tensor, client: Tensor, cohort: Tensor, secret: Tensor) -> Tensor:
    """[n] whole `counts` of `client` under the masks that it shares with the others of `cohort` [C]."""
    low, high = torch.minimum(cohort, client), torch.maximum(cohort, client)
    places = torch.arange(len(counts), device=counts.device)
    masks = _hashed(_hashed(_hashed(secret + low) + high)[:, None] + places)  # [C, n], the same for both of a pair
    signs = torch.sign(cohort - client)[:, None]  # 0 for the client itself
    return counts.round().to(torch.int64) + (signs * masks).sum(0)


def unmasked_sum(masked_counts: Tensor, like: Tensor) -> Tensor:
    """[n] the sum over clients of what they masked, in which the masks cancel."""
    return masked_counts.sum(0).to(like.dtype)


def _hashed(x: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64, whose products wrap around."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """A logical right shift: torch's keeps the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
