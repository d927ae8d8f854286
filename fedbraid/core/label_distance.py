"""Distances between label distributions."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Metric = Literal["kl", "l1", "l2", "cosine"]
METRICS: tuple[Metric, ...] = get_args(Metric)


def discrepancy(metric: str, shares: Tensor, target: Tensor) -> Tensor:
    """Return the distance of a label distribution from a target, FedDisco's e(D, T).

    Args:
        metric: "kl" (natural logarithm, with 0 log 0 = 0), "l1", "l2" or "cosine".
        shares: [classes] non-negative shares that sum to 1.
        target: [classes] likewise. KL is infinite where it lacks a class that `shares` has.

    Returns:
        A scalar.
    """
    if metric == "kl":
        return (torch.xlogy(shares, shares) - torch.xlogy(shares, target)).sum()
    if metric == "l1":
        return (shares - target).abs().sum()
    if metric == "l2":
        return (shares - target).square().sum().sqrt()
    return 1 - (shares * target).sum() / (shares.square().sum() * target.square().sum()).sqrt()
