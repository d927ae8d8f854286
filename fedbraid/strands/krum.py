from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.options import default
from fedbraid.core.strand import Round, Setup, Strand
from fedbraid.core.tree import Tree
from fedbraid.errors import UserError
from fedbraid.strands.robust import ROBUST


@dataclass(frozen=True)
class Krum(Strand):
    """The update that is nearest to its neighbours, or the mean of the `keep` nearest ones (multi-Krum).

    Of n clients at most f = ⌊`bad` · n⌋ are bad, which needs n ≥ 2 f + 3. The score of an update (parameters and
    buffers together) is the sum of its n − f − 2 smallest squared distances to others; those with the least scores are
    kept, of equal ones the first. They are chosen by count, and those that are kept are weighed by their shares.
    A round from which too few clients come back leaves the model as it is.
    """

    title = "Krum (Blanchard et al., 2017)"
    averages = "uniform"
    constraints = ROBUST

    bad: float = default(0.2, least=0, below=0.5)
    keep: int = default(1, least=1)

    def init_server(self, setup: Setup) -> Tree:
        if setup.cohort is not None and setup.cohort < (least := self._least(setup.cohort)):
            raise UserError(
                f"krum with bad={self.bad:g} and keep={self.keep} needs at least {least} clients in a round, and there "
                f"are {setup.cohort}; take more clients, or a smaller bad or keep"
            )
        return {}

    def aggregate(self, updates: Tensor, r: Round) -> tuple[Tensor, Tree]:
        assert r.shares is not None
        n = len(updates)
        if n < self._least(n):  # others were lost: of so few, a bad one could be the one that is kept
            return torch.zeros_like(updates[0]), r.state
        # Row by row: [n, n, D] at once would not fit, and distances by way of scalar products lose digits.
        squares = torch.stack([(updates - one).square().sum(1) for one in updates])
        others = squares.fill_diagonal_(torch.inf)
        scores = others.sort(1).values[:, : n - self._bad(n) - 2].sum(1)
        best = scores.argsort(stable=True)[: self.keep]
        shares = r.shares[best]
        return (shares / shares.sum()) @ updates[best], r.state

    def _bad(self, clients: int) -> int:
        return int(self.bad * clients + 1e-9)  # 0.29 · 100 is 28.999…

    def _least(self, clients: int) -> int:
        return max(2 * self._bad(clients) + 3, self.keep)
