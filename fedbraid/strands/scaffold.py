from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbraid.core.chain import overrides
from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Client, Gradient, Round, Setup, Strand
from fedbraid.core.tree import Tree

CHANGES_IT = "option 1 takes the gradient of the plain loss, which it changes; use option 2"
READS_SGD = (
    "scaffold's option 2 reads the gradient from how far local SGD moved, which other optimizers do not tell; set "
    "strands.scaffold.option=1, which computes it, or optimizer.name=sgd"
)


@dataclass(frozen=True)
class Scaffold(Strand):
    """Control variates: correct each local gradient by c − c_k (Algorithm 1).

    The new c_k is the gradient at the received model over the client's data (option 1), or what local training moved
    over how far its steps reach (option 2): their number K for plain SGD, FedNova's ‖a‖₁ under momentum, without which
    momentum makes SCAFFOLD diverge. The learning rate is the one used in the round, decayed. The paper averages
    uniformly and reaches the uniform optimum; `by_size` scales c by clients' relative sizes, as FedDyn's repository
    does, and reaches the one weighted by data. `strength` scales the correction; 0 is FedAvg.
    """

    title = "SCAFFOLD (Karimireddy et al., 2020)"
    averages = "uniform"
    neutral = {"strength": 0.0}

    option: Literal[1, 2] = 2
    server_lr: float = default(1.0, above=0)
    strength: float = default(1.0, least=0)
    by_size: bool = False

    @property
    def constraints(self) -> Constraints:
        if self.option == 1:
            return Constraints(
                sum_only={"change"}, excludes=lambda o: CHANGES_IT if overrides(o, "batch", "logits", "loss") else ""
            )
        return Constraints(sum_only={"change"}, sgd_only=READS_SGD)

    def init_server(self, setup: Setup) -> Tree:
        return {"c": torch.zeros_like(setup.w)}

    def init_client(self, setup: Setup) -> Tree:
        return {"c": torch.zeros_like(setup.w)}

    def send(self, r: Round) -> Tree:
        return {"c": r.state["c"]}

    def grad(self, w: Tensor, c: Client, next: Gradient) -> Tensor:
        return next(w) + self._correction(c)  # eq. 3

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        if self.option == 1:
            new = c.full_gradient(c.received_model)
        else:
            moved = (c.start - w) / (c.optimizer.effective_steps(c.steps) * c.lr)
            new = moved - self._correction(c)
        return {"change": self._size(c) * (new - c.state["c"])}, {"c": new}  # eq. 4

    def _correction(self, c: Client) -> Tensor:
        return self.strength * (c.received["c"] / self._size(c) - c.state["c"])

    def _size(self, c: Client) -> Tensor | float:
        return c.relative_size if self.by_size else 1.0

    def absorb(self, r: Round) -> Tree:
        return {"c": r.state["c"] + r.sum("change") / r.setup.population}  # eq. 5

    def update(self, delta: Tensor, r: Round) -> tuple[Tensor | None, Tree]:
        return self.server_lr * delta, r.state
