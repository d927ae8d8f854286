from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Round, Setup, Strand
from fedbraid.core.tree import Tree
from fedbraid.strands.avgm import SERVER_OPTIMISER
from fedbraid.strands.skip import SENDS


@dataclass(frozen=True)
class Acg(Strand):
    """Accelerated client gradient: clients train from where the server's momentum leads; FedACG with `prox`.

    The server sends z = x + λ m; then m ← λ m + mean(y_k − z) and x ← x + m, which is the mean of the y_k. x is
    evaluated and handed out. `prox` pulls towards z; the authors' code has the weight 0.001 without a half, which is
    μ = 0.002. λ = 0 is FedAvg.
    """

    title = "FedACG (Kim et al., 2024)"
    averages = "uniform"
    neutral = {"lam": 0.0}
    constraints = Constraints(claims=(SENDS, SERVER_OPTIMISER))

    lam: float = default(0.85, least=0, below=1)

    def init_server(self, setup: Setup) -> Tree:
        return {"m": torch.zeros_like(setup.w)}

    def send(self, r: Round) -> Tree:
        return {"model": r.w + self.lam * r.state["m"]}

    def update(self, delta: Tensor, r: Round) -> tuple[Tensor | None, Tree]:
        return delta, {"m": delta}  # mean(y) − x = λ m + mean(y − z)
