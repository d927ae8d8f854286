from dataclasses import dataclass

from torch import Tensor

from fedbraid.core.options import default
from fedbraid.core.strand import Round, Strand
from fedbraid.core.tree import Tree
from fedbraid.strands.robust import ROBUST, sorted_by_coordinate


@dataclass(frozen=True)
class Trimmed(Strand):
    """The mean of the updates in every coordinate without the largest and the smallest values, of buffers too.

    On each side values are left out whose shares sum to β; of the value at the cut, the rest of its share counts. With
    n clients that count the same and β n = b, these are the b largest and the b smallest. β = 0 is the mean.
    """

    title = "Trimmed mean (Yin et al., 2018)"
    averages = "uniform"
    constraints = ROBUST

    beta: float = default(0.2, least=0, below=0.5)

    def aggregate(self, updates: Tensor, r: Round) -> tuple[Tensor, Tree]:
        values, shares = sorted_by_coordinate(updates, r)
        below = shares.cumsum(0)
        inside = below.clamp(max=1 - self.beta) - (below - shares).clamp(min=self.beta)
        kept = inside.clamp(min=0)
        return (kept * values).sum(0) / kept.sum(0), r.state
