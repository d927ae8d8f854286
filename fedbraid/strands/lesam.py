from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Client, Gradient, Setup, Strand
from fedbraid.core.tree import Tree
from fedbraid.strands.sam import PERTURBS


@dataclass(frozen=True)
class Lesam(Strand):
    """Locally estimated sharpness: SAM's perturbation from the global model's own movement, without a second gradient.

    The gradient is g(y + e_k), e_k = ρ (x_old − x) / ‖x_old − x‖, with x the model received now and x_old the one that
    the client received when it last took part; e_k = 0 the first time, and constant during a round. Corrections of
    other strands are taken at y: with `scaffold` it is FedLESAM-S, with `drift` FedLESAM-D. ρ = 0 is FedAvg.

    The authors' code takes the last global step for everybody, indexes the flat perturbation by the number of the
    tensor (so that a whole tensor is shifted by one number), and scales FedLESAM-S's correction; here it is the paper's
    form.
    """

    title = "FedLESAM (Fan et al., 2024)"
    averages = "uniform"
    neutral = {"rho": 0.0}
    constraints = Constraints(claims=(PERTURBS,), first_in={"grad"})

    rho: float = default(0.1, least=0)

    def init_client(self, setup: Setup) -> Tree:
        return {"seen": setup.w, "known": setup.w.new_zeros(())}

    def begin(self, w: Tensor, c: Client) -> Tree:
        gap = c.state["known"] * (c.state["seen"] - c.received_model[0])
        return {"e": self.rho * gap / gap.norm().clamp(min=1e-16)}

    def grad(self, w: Tensor, c: Client, next: Gradient) -> Tensor:
        return next(w + c.memory["e"])

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        return {}, {"seen": c.received_model[0], "known": torch.ones_like(c.state["known"])}
