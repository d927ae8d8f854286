from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.strand import Round, Strand


@dataclass(frozen=True)
class Uniform(Strand):
    """Every client of the cohort counts the same, whatever the size of its data: p_k = 1 / K."""

    title = "Uniform averaging"

    def weigh(self, shares: Tensor, r: Round) -> Tensor:
        return torch.full_like(shares, 1 / len(shares))


@dataclass(frozen=True)
class Sizes(Strand):
    """Every client counts by its data, also in methods whose papers average uniformly: p_k = n_k / Σ n."""

    title = "Averaging by data size (McMahan et al., 2017)"
    neutral = {}

    def weigh(self, shares: Tensor, r: Round) -> Tensor:
        return shares
