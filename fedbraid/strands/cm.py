from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Client, Gradient, Round, Setup, Strand
from fedbraid.core.tree import Tree


@dataclass(frozen=True)
class Cm(Strand):
    """Client-level momentum: mix each local gradient with the direction of the last round's global step.

    y ← y − η [α g(y) + (1 − α) D];  D ← − mean_k(y_k − x) / mean_k(K_k η), 0 at first. K_k η is how far the client's
    steps reach, so that clients with different numbers of steps, momentum and a decayed learning rate are right; the
    authors' code takes the number of steps of client 0 for all. With `sam` it is MoFedSAM. α = 1 is FedAvg. List `cm`
    before a server optimiser, whose step D is not to be.
    """

    title = "FedCM (Xu et al., 2021)"
    averages = "uniform"
    neutral = {"alpha": 1.0}
    constraints = Constraints(
        sum_only={"reach"},
        sgd_only="cm reads a mean gradient from how far local SGD moved; set optimizer.name=sgd",
        excludes={"skip": "cm takes the global step for what one round moved; leave one of them out"},
    )

    alpha: float = default(0.1, above=0, most=1)

    def init_server(self, setup: Setup) -> Tree:
        return {"d": torch.zeros_like(setup.w)}

    def send(self, r: Round) -> Tree:
        return {"d": r.state["d"]}

    def grad(self, w: Tensor, c: Client, next: Gradient) -> Tensor:
        return self.alpha * next(w) + (1 - self.alpha) * c.received["d"]

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        return {"reach": c.optimizer.effective_steps(c.steps) * c.lr}, c.state

    def update(self, delta: Tensor, r: Round) -> tuple[Tensor | None, Tree]:
        return delta, {"d": -delta / (r.sum("reach") / len(r.cohort))}
