"""The constraints that strands share which replace the mean of the updates by one that bad clients cannot move far."""

from __future__ import annotations

from fedbraid.core.chain import overrides
from fedbraid.core.constraints import AS_TRAINED, Constraints
from fedbraid.core.strand import Strand

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
