from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.strand import Round, Strand


@dataclass(frozen=True)
class Disco(Strand):
    """Aggregation weights from data size and label discrepancy.

    p_k ∝ ReLU(n_k − a d_k + b), where n_k is the client's share of the cohort's data and d_k = KL(D_k ‖ uniform),
    scaled to sum to 1 over the cohort as the authors' code does (the paper's text leaves the scaling out). The
    weights are computed anew over each round's participants, and fall back to n_k when all of them vanish.
    a = b = 0 is FedAvg.
    """

    title = "FedDisco (Ye et al., 2023)"
    neutral = {"a": 0.0, "b": 0.0}
    needs = frozenset({"labels"})

    a: float = 0.5
    b: float = 0.1

    def weights(self, n: Tensor, r: Round) -> Tensor:
        if not self.a and not self.b:
            return n  # FedAvg to the bit: n sums to 1 only up to rounding
        d = kl_to_uniform(r.cohort.label_shares)  # section 5.1
        d = d / d.sum().clamp(min=1e-12)
        p = (n - self.a * d + self.b).relu()  # eq. 3
        return p / p.sum() if p.sum() > 0 else n


def kl_to_uniform(shares: Tensor) -> Tensor:
    """KL(D ‖ uniform) in nats of each row, with 0 log 0 = 0."""
    return torch.xlogy(shares, shares * shares.shape[1]).sum(1)
