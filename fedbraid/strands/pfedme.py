from dataclasses import dataclass

from torch import Tensor

from fedbraid.core.options import default
from fedbraid.core.strand import Client, Gradient, Round, Setup, Strand
from fedbraid.core.tree import Tree


@dataclass(frozen=True)
class PFedMe(Strand):
    """Personal models by Moreau envelopes: the local step follows the way from the model to a personal one near it.

    On every batch k steps θ ← θ − a (g(θ) + λ (θ − w)), then the local step has the gradient λ (w − θ). θ starts at the
    model received and goes on from batch to batch; at the end of the round it is the client's own model. The server
    steps by β of the mean update. The authors' code also decays θ by 0.001, and averages a part of the clients that
    train.
    """

    title = "pFedMe (Dinh et al., 2020)"

    lam: float = default(15.0, least=0)
    steps: int = default(5, least=1)
    lr: float = default(0.09, above=0)
    beta: float = default(1.0, least=0)

    def init_client(self, setup: Setup) -> Tree:
        return {"theta": setup.w}

    def begin(self, w: Tensor, c: Client) -> Tree:
        return {"theta": c.start}

    def grad(self, w: Tensor, c: Client, next: Gradient) -> tuple[Tensor, Tree]:
        theta = c.memory["theta"]
        for _ in range(self.steps):
            theta = theta - self.lr * (next(theta) + self.lam * (theta - w))
        return self.lam * (w - theta), {"theta": theta}

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        return {}, {"theta": c.memory["theta"]}

    def update(self, delta: Tensor, r: Round) -> tuple[Tensor | None, Tree]:
        return self.beta * delta, r.state

    def personalise(self, w: Tensor, state: Tree, setup: Setup) -> Tensor:
        return state["theta"]
