from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.strand import Client, Gradient, Round, Setup, Strand
from fedbraid.core.tree import Tree


@dataclass(frozen=True)
class Scaffold(Strand):
    """Control variates: correct each local gradient by c − c_k (Algorithm 1, option II).

    The paper averages uniformly. The new c_k divides by how far the local steps really reach (`reach`): their number
    K for plain SGD, FedNova's ‖a‖₁ under momentum, without which momentum makes SCAFFOLD diverge. The learning rate
    is the one used in the round, decayed.
    """

    title = "SCAFFOLD (Karimireddy et al., 2020)"
    averages = "uniform"

    def init_server(self, setup: Setup) -> Tree:
        return {"c": torch.zeros_like(setup.w)}

    def init_client(self, setup: Setup) -> Tree:
        return {"c": torch.zeros_like(setup.w)}

    def send(self, r: Round) -> Tree:
        return {"c": r.kept["c"]}

    def grad(self, w: Tensor, c: Client, next: Gradient) -> Tensor:
        return next(w) - c.kept["c"] + c.received["c"]  # eq. 3

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        new = c.kept["c"] - c.received["c"] + (c.start - w) / (c.optimizer.reach(c.steps) * c.lr)  # eq. 4, option II
        return {"change": new - c.kept["c"]}, {"c": new}

    def absorb(self, r: Round) -> Tree:
        return {"c": r.kept["c"] + r.sum("change") / r.setup.population}  # eq. 5
