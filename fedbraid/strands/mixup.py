from dataclasses import dataclass, replace

import numpy as np

from fedbraid.core.batch import Batch
from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Client, Draws, Strand
from fedbraid.core.tree import Arrays
from fedbraid.errors import UserError

MIXES = "mix the inputs"


@dataclass(frozen=True)
class Mixup(Strand):
    """Train on convex combinations of a batch's samples and of their labels, one λ ~ Beta(α, α) per batch."""

    title = "Input Mixup (Zhang et al., 2018)"
    constraints = Constraints(needs={"labels"}, claims=(MIXES,))

    alpha: float = default(1.0, above=0)

    def draw(self, d: Draws) -> tuple[Arrays, Arrays]:
        return draw_mixes(self.alpha, d), {}

    def batch(self, batch: Batch, c: Client) -> Batch:
        return mixed(batch, self.name)


def draw_mixes(alpha: float, d: Draws) -> Arrays:
    """Draw for each step how much of a sample is kept, and which of the batch's real samples it is mixed with."""
    partners = np.tile(np.arange(d.width), (len(d.counts), 1))
    for step, count in enumerate(d.counts):
        partners[step, :count] = d.steps.permutation(count)
    return {"keep": d.steps.beta(alpha, alpha, len(d.counts)), "partner": partners}


def mixed(batch: Batch, strand: str) -> Batch:
    if not batch.x.is_floating_point():
        raise UserError(f"{strand} mixes inputs, and tokens cannot be mixed; leave mixup out for text")
    keep, partner = batch.draws[f"{strand}.keep"], batch.draws[f"{strand}.partner"][: len(batch.mask)]
    x, y = (keep * t + (1 - keep) * t[partner] for t in (batch.x, batch.y))
    return replace(batch, x=x, y=y)
