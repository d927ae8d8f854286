from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Round, Setup, Strand
from fedbraid.core.tree import Tree
from fedbraid.errors import UserError

SERVER_OPTIMISER = "are the server's optimiser"


@dataclass(frozen=True)
class AvgM(Strand):
    """Momentum on the server: v ← β v + Δ;  x ← x + v, heavy ball.

    `nesterov` steps by Δ + β v (the form of the paper's experiments); `dampened` uses v ← β v + (1 − β) Δ, as
    several public repositories do. β = 0 is FedAvg.
    """

    title = "FedAvgM (Hsu et al., 2019)"
    neutral = {"beta": 0.0}
    constraints = Constraints(claims=(SERVER_OPTIMISER,))

    beta: float = default(0.9, least=0, below=1)
    nesterov: bool = False
    dampened: bool = False

    def __post_init__(self) -> None:
        if self.nesterov and self.dampened:
            raise UserError("avgm's nesterov and dampened are two forms of its momentum; keep one of them")

    def init_server(self, setup: Setup) -> Tree:
        return {"v": torch.zeros_like(setup.w)}

    def update(self, delta: Tensor, r: Round) -> tuple[Tensor | None, Tree]:
        fresh = (1 - self.beta) * delta if self.dampened else delta
        v = self.beta * r.state["v"] + fresh
        return (delta + self.beta * v if self.nesterov else v), {"v": v}
