"""Parts of the strands that replace the mean of the updates: their constraints, and arithmetic that some share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedbraid.core.chain import overrides
from fedbraid.core.constraints import AS_TRAINED, Constraints
from fedbraid.core.strand import Round, Strand

REWEIGHS = "{} weighs the updates of a mean, and a robust rule replaces the mean; leave one of them out"
UNBOUNDED = (
    "the server of {} uses what clients upload beside their models, which a robust rule on updates does not bound"
)
UNBOUNDED_BY_NAME = {
    "exp": UNBOUNDED,
    "fedacd": "a client of {} uploads its own weight, and a bad one uploads a huge one",
}
PASSES_ON = "{} passes single models on to other clients, past every robust rule; leave one of them out"


def bypasses(other: Strand) -> str:
    """Return why a bad client could move the server past a robust rule by means of `other`, or ""."""
    if overrides(other, "aggregate"):
        return ""  # two of these are refused by what both claim
    if other.name == "skip":
        return PASSES_ON.format(other.name)
    if overrides(other, "rescale"):
        return REWEIGHS.format(other.name)
    said = other.constraints
    answers = overrides(other, "probe") and not said.within  # disco's discrepancies are bounded
    if said.sum_only or AS_TRAINED in said.needs or answers or overrides(other, "absorb"):
        return UNBOUNDED.format(other.name)
    return UNBOUNDED_BY_NAME.get(other.name, "").format(other.name)


ROBUST = Constraints(needs={"each model"}, excludes=bypasses)
"""Every robust rule looks at single updates, so that secure sums, which hide them, are refused."""


def shortening(lengths: Tensor, bound: float) -> Tensor:
    """Return the factors [C] that bring vectors of these lengths to `bound` at most; 0 = to their median length.

    Of an even number the median is the lower middle one: with half of the clients bad, a good one still sets it.
    """
    median = torch.where(lengths.isfinite(), lengths, math.inf).median()
    longest = median.new_tensor(bound) if bound else median
    return torch.where(lengths > longest, longest / lengths, 1.0)


def sorted_by_coordinate(updates: Tensor, r: Round) -> tuple[Tensor, Tensor]:
    """Return the values of every coordinate in ascending order [C, D], and the shares of the clients they are from."""
    assert r.shares is not None
    values, order = updates.sort(dim=0, stable=True)
    return values, r.shares[order]
