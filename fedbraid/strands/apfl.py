from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.options import default
from fedbraid.core.strand import Client, Gradient, Setup, Strand, View
from fedbraid.core.tree import Tree


@dataclass(frozen=True)
class Apfl(Strand):
    """Adaptive personalisation: a client's model is a mixture of its own and of the global one.

    On every batch, beside the local step of the global model w: v ← v − η α g(v̄), v̄ = α v + (1 − α) w before the step;
    with `adaptive` also α ← clip(α − η ⟨v − w, g(v̄)⟩, 0, 1). Parameters are mixed, as in the paper; the authors' code
    mixes outputs. The client's model mixes v with the global model that it is handed. v̄ has running statistics of its
    own.
    """

    title = "APFL (Deng et al., 2020)"
    neutral = {}

    alpha: float = default(0.5, least=0, most=1)
    adaptive: bool = False

    def init_client(self, setup: Setup) -> Tree:
        return {"v": setup.w, "alpha": torch.full_like(setup.w[0], self.alpha), "buffers": setup.buffers}

    def begin(self, w: Tensor, c: Client) -> Tree:
        return {"v": c.state["v"], "alpha": c.state["alpha"], "statistics": c.state["buffers"]}

    def grad(self, w: Tensor, c: Client, next: Gradient) -> tuple[Tensor, Tree]:
        v, alpha = c.memory["v"], c.memory["alpha"]
        g, statistics = c.batch_gradient((alpha * v + (1 - alpha) * w, c.memory["statistics"]))
        moved = (alpha - c.lr * ((v - w) * g).sum()).clamp(0, 1) if self.adaptive else alpha
        return next(w), {"v": v - c.lr * alpha * g, "alpha": moved, "statistics": statistics}

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        memory = c.memory
        return {}, {"v": memory["v"], "alpha": memory["alpha"], "buffers": memory["statistics"]}

    def personalise(self, w: Tensor, state: Tree, setup: Setup) -> View:
        return state["alpha"] * state["v"] + (1 - state["alpha"]) * w, state["buffers"]
