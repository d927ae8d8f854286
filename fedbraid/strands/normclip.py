from dataclasses import dataclass

from torch import Tensor

from fedbraid.core.options import default
from fedbraid.core.strand import Round, Strand
from fedbraid.core.tree import Tree
from fedbraid.strands.robust import ROBUST, shortening


@dataclass(frozen=True)
class NormClip(Strand):
    """Norm clipping on the server: no client moves the model by more than its share of the bound T.

    x ← x + Σ p_k Δ_k min(1, T / ‖Δ_k‖), Δ_k the update of parameters and buffers together, p_k the shares of the mean.
    T = `bound`, or with 0 the median length of the round's updates (the lower of two middle ones), which fewer than
    half of the clients cannot move far. An update that is not finite counts as zero. A clip at the clients, as in `dp`,
    is no defence against one that lies.
    """

    title = "Norm clipping (Sun et al., 2019)"
    constraints = ROBUST

    bound: float = default(0.0, least=0)

    def aggregate(self, updates: Tensor, r: Round) -> tuple[Tensor, Tree]:
        assert r.shares is not None
        lengths = updates.norm(dim=1)
        finite = lengths.isfinite()
        factors = shortening(lengths, self.bound).masked_fill(~finite, 0.0)
        return (r.shares * factors) @ updates.masked_fill(~finite[:, None], 0.0), r.state
