from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.options import default
from fedbraid.core.strand import Round, Setup, Strand
from fedbraid.core.tree import Tree
from fedbraid.strands.robust import ROBUST, shortening


@dataclass(frozen=True)
class CClip(Strand):
    """Centred clipping: updates are clipped around the last aggregate, which honest ones are near.

    v ← v + Σ p_k (Δ_k − v) min(1, τ / ‖Δ_k − v‖), `steps` times in a round; v is the last round's aggregate, 0 at
    first. τ = `tau`, or with 0 the median of ‖Δ_k − v‖ in the step (the lower of two middle ones). Δ_k is the update of
    parameters and buffers together, where the paper has the momentum of a client that takes one step in a round.
    """

    title = "Centred clipping (Karimireddy et al., 2021)"
    averages = "uniform"
    constraints = ROBUST

    tau: float = default(0.0, least=0)
    steps: int = default(1, least=1)

    def init_server(self, setup: Setup) -> Tree:
        return {"v": torch.zeros_like(torch.cat([setup.w, setup.buffers]))}

    def aggregate(self, updates: Tensor, r: Round) -> tuple[Tensor, Tree]:
        assert r.shares is not None
        v = r.state["v"]
        for _ in range(self.steps):
            away = updates - v
            v = v + (r.shares * shortening(away.norm(dim=1), self.tau)) @ away
        return v, {"v": v}
