from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
from torch import Tensor

from fedbraid.core.constraints import Constraints
from fedbraid.core.label_distance import discrepancy
from fedbraid.core.options import default
from fedbraid.core.strand import Client, Round, Setup, Strand
from fedbraid.core.tree import Ask, Tree
from fedbraid.errors import UserError

TINY = 1e-3
"""How far rounding may take a discrepancy beyond its range."""
LARGEST = {"kl": inf, "l1": 2 + TINY, "l2": 2**0.5 + TINY, "cosine": 1 + TINY}
"""Discrepancies of two label distributions at most."""


@dataclass(frozen=True)
class Disco(Strand):
    """Aggregation weights from data size and label discrepancy.

    p_k ∝ ReLU(n_k − a d_k + b), where n_k is the client's share of the cohort's data and d_k the discrepancy of its
    label distribution from a target: KL (natural logarithm), L1, L2 or cosine. The client computes d_k and sends it;
    the server scales d to sum to 1 over the round's participants, as the authors' code does (the paper's text leaves
    this out; `normalise=False`). A client whose discrepancy is infinite has no weight and no part in that sum.
    The weights fall back to n_k when all of them vanish. a = b = 0 is FedAvg.

    The target is uniform, given as numbers, the distribution of all clients' labels, of which the server knows the sum
    of counts before the first round and no single client's (`target="global"`, appendix A.3), or that of the round's
    cohort, which clients are asked for in every round (`target="cohort"`). For a regression, labels are counted in
    ranges.
    """

    title = "FedDisco (Ye et al., 2023)"
    neutral = {"a": 0.0, "b": 0.0}

    a: float = default(0.5, least=0)
    b: float = 0.1
    metric: Literal["kl", "l1", "l2", "cosine"] = "kl"
    normalise: bool = True
    target: Literal["uniform", "global", "cohort"] | tuple[float, ...] = "uniform"

    def __post_init__(self) -> None:
        if isinstance(self.target, tuple) and (abs(sum(self.target) - 1) > 1e-6 or min(self.target) < 0):
            raise UserError(f"disco's target must be shares that sum to 1, not {self.target}")

    def init_server(self, setup: Setup) -> Tree:
        if isinstance(self.target, tuple) and len(self.target) != setup.label_bins:
            raise UserError(f"disco's target has {len(self.target)} shares, but there are {setup.label_bins} classes")
        if self.target != "global":
            return {}
        if setup.label_counts is None:
            raise UserError(
                "disco(target=global) takes the label distribution of all clients before the first round, which nobody "
                "knows here; set target=cohort, the distribution in each round"
            )
        return {"target": setup.label_counts / setup.label_counts.sum()}

    # the target, where it is the clients' own distribution

    @property
    def constraints(self) -> Constraints:
        sum_only = {"counts"} if self.target == "cohort" else set()
        return Constraints(sum_only=sum_only, within={"d": (-TINY, LARGEST[self.metric])})

    def probe(self, c: Client) -> Tree:
        return {"counts": c.label_counts} if self.target == "cohort" else {}

    def send(self, r: Round) -> Tree | Ask:
        if self.target != "cohort":
            return dict(r.state)  # the global target, or nothing
        if r.replies is None:
            return Ask()
        counts = r.sum("counts")
        return {"target": counts / counts.sum()}

    # the weights

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        shares = c.label_counts / c.label_counts.sum()
        target = c.received.get("target", torch.full_like(shares, 1 / len(shares)))
        if isinstance(self.target, tuple):
            target = torch.tensor(self.target, dtype=shares.dtype, device=shares.device)
        return {"d": discrepancy(self.metric, shares, target)}, c.state

    def weigh(self, shares: Tensor, r: Round) -> Tensor:
        if not self.a and not self.b:
            return shares  # FedAvg to the bit: they sum to 1 only up to rounding
        return disco_weights(shares, r.each("d"), self.a, self.b, self.normalise)


def disco_weights(n: Tensor, d: Tensor, a: float, b: float, normalise: bool = True) -> Tensor:
    """The weights of clients with relative sizes n and discrepancies d."""
    far = d.isinf()
    d = d.masked_fill(far, 0.0)
    if normalise and d.sum() > 0:
        d = d / d.sum()
    p = (n - a * d + b).relu()  # eq. 3
    if a:
        p = p.masked_fill(far, 0.0)
    return p / p.sum() if p.sum() > 0 else n
