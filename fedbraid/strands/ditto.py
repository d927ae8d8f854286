from dataclasses import dataclass

from torch import Tensor

from fedbraid.core.options import default
from fedbraid.core.strand import Client, Gradient, Setup, Strand, View
from fedbraid.core.tree import Tree


@dataclass(frozen=True)
class Ditto(Strand):
    """A personal model beside the global one, which is trained as if it were not there.

    On every batch, beside the local step of the global model: v ← v − η (g(v) + λ (v − x)), x the model received, v the
    client's own, at first the initial model. It is plain SGD, whatever the global model's optimiser; v has running
    statistics of its own. λ = 0 is training alone, a large one keeps v at the global model.
    """

    title = "Ditto (Li et al., 2021)"
    neutral = {}

    lam: float = default(0.1, least=0)

    def init_client(self, setup: Setup) -> Tree:
        return {"v": setup.w, "buffers": setup.buffers}

    def begin(self, w: Tensor, c: Client) -> Tree:
        return {"v": c.state["v"], "statistics": c.state["buffers"]}

    def grad(self, w: Tensor, c: Client, next: Gradient) -> tuple[Tensor, Tree]:
        v = c.memory["v"]
        g, statistics = c.batch_gradient((v, c.memory["statistics"]))
        pulled = g + self.lam * (v - c.received_model[0])
        return next(w), {"v": v - c.lr * pulled, "statistics": statistics}

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        return {}, {"v": c.memory["v"], "buffers": c.memory["statistics"]}

    def personalise(self, w: Tensor, state: Tree, setup: Setup) -> View:
        return state["v"], state["buffers"]
