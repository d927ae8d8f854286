from dataclasses import dataclass

from torch import Tensor

from fedbraid.core.options import default
from fedbraid.core.strand import Round, Strand
from fedbraid.core.tree import Tree
from fedbraid.strands.robust import ROBUST


@dataclass(frozen=True)
class Rfa(Strand):
    """The geometric median of the updates, by smoothed Weiszfeld steps from their mean.

    z ← Σ b_k Δ_k / Σ b_k with b_k = p_k / max(ε, ‖z − Δ_k‖), `steps` times, Δ_k the update of parameters and buffers
    together, p_k the shares by data size, as in the authors' code: these are what clients say of themselves, and
    `uniform` makes clients count the same. 0 steps are the mean. A step leaves of far updates, whose shares sum to s,
    about s / (1 − s) of what they still add (a quarter for a fifth), so that huge ones need more steps.
    """

    title = "RFA (Pillutla et al., 2022)"
    constraints = ROBUST

    steps: int = default(4, least=0)
    eps: float = default(1e-5, above=0)

    def aggregate(self, updates: Tensor, r: Round) -> tuple[Tensor, Tree]:
        assert r.shares is not None
        z = r.shares @ updates
        for _ in range(self.steps):
            b = r.shares / (updates - z).norm(dim=1).clamp(min=self.eps)
            z = (b / b.sum()) @ updates
        return z, r.state
