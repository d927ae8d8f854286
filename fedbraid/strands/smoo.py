from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Client, Gradient, Round, Setup, Strand
from fedbraid.core.tree import Tree
from fedbraid.strands.sam import PERTURBS


@dataclass(frozen=True)
class Smoo(Strand):
    """SAM whose perturbations are drawn towards one for all clients, by a dual variable for each.

    On every batch q = g(y) − μ_k − s, e = ρ q / ‖q‖, μ_k ← μ_k + e − s, and the gradient is g(y + e). μ_k stays with
    the client and is uploaded; the server sends s = ρ mean(μ_k) / ‖mean(μ_k)‖, 0 at first. As in the authors' code, s
    has no term of the clients' last perturbations. Corrections of other strands are taken at y: with `drift` it is
    FedSMOO. ρ = 0 is FedAvg.
    """

    title = "FedSMOO's smoothness part (Sun et al., 2023)"
    averages = "uniform"
    neutral = {"rho": 0.0}
    constraints = Constraints(claims=(PERTURBS,), first_in={"grad"}, sum_only={"mu"})

    rho: float = default(0.1, least=0)

    def init_server(self, setup: Setup) -> Tree:
        return {"s": torch.zeros_like(setup.w)}

    def init_client(self, setup: Setup) -> Tree:
        return {"mu": torch.zeros_like(setup.w)}

    def send(self, r: Round) -> Tree:
        return {"s": r.state["s"]}

    def begin(self, w: Tensor, c: Client) -> Tree:
        return {"mu": c.state["mu"]}

    def grad(self, w: Tensor, c: Client, next: Gradient) -> tuple[Tensor, Tree]:
        mu, s = c.memory["mu"], c.received["s"]
        q = next(w) - mu - s
        e = self.rho * q / q.norm().clamp(min=1e-16)
        return next(w + e), {"mu": mu + e - s}

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        return {"mu": c.memory["mu"]}, {"mu": c.memory["mu"]}

    def absorb(self, r: Round) -> Tree:
        mean = r.sum("mu") / len(r.cohort)
        return {"s": self.rho * mean / mean.norm().clamp(min=1e-16)}
