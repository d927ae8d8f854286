from dataclasses import dataclass, replace

import numpy as np

from fedbraid.core.batch import Batch
from fedbraid.core.options import default
from fedbraid.core.strand import Client, Strand
from fedbraid.errors import UserError

MIXES = "mix the inputs"


@dataclass(frozen=True)
class Mixup(Strand):
    """Train on convex combinations of a batch's samples and of their labels, one λ ~ Beta(α, α) per batch."""

    title = "Input Mixup (Zhang et al., 2018)"
    needs = frozenset({"labels"})

    alpha: float = default(1.0, above=0)

    @property
    def claims(self) -> tuple[str, ...]:
        return (MIXES,)

    def draw(self, rng: np.random.Generator, counts: np.ndarray, width: int) -> dict[str, np.ndarray]:
        return draw_mixes(self.alpha, rng, counts, width)

    def batch(self, batch: Batch, c: Client) -> Batch:
        return mixed(batch, self.name)


def draw_mixes(alpha: float, rng: np.random.Generator, counts: np.ndarray, width: int) -> dict[str, np.ndarray]:
    """For each step how much of a sample is kept, and which of the batch's real samples it is mixed with."""
    partners = np.tile(np.arange(width), (len(counts), 1))
    for step, count in enumerate(counts):
        partners[step, :count] = rng.permutation(count)
    return {"keep": rng.beta(alpha, alpha, len(counts)), "partner": partners}


def mixed(batch: Batch, strand: str) -> Batch:
    if not batch.x.is_floating_point():
        raise UserError(f"{strand} mixes inputs, and tokens cannot be mixed; leave mixup out for text")
    keep, partner = batch.draws[f"{strand}.keep"], batch.draws[f"{strand}.partner"][: len(batch.mask)]
    x, y = (keep * t + (1 - keep) * t[partner] for t in (batch.x, batch.y))
    return replace(batch, x=x, y=y)
