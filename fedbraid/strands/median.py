from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.strand import Round, Strand
from fedbraid.core.tree import Tree
from fedbraid.strands.robust import ROBUST, sorted_by_coordinate

TIE = 1e-5
"""How far rounding may take a sum of shares from a half."""


@dataclass(frozen=True)
class Median(Strand):
    """The median of the updates in every coordinate, of buffers too.

    The median is the first value at which the shares of the values up to it sum to 1/2; where they sum to exactly 1/2,
    it is the mean of this value and the next one. Clients count the same unless a strand such as `sizes` sets shares,
    which are then what clients say of themselves.
    """

    title = "Coordinate-wise median (Yin et al., 2018)"
    averages = "uniform"
    constraints = ROBUST

    def aggregate(self, updates: Tensor, r: Round) -> tuple[Tensor, Tree]:
        values, shares = sorted_by_coordinate(updates, r)
        below = shares.cumsum(0)
        lower, upper = ((below > 0.5 + off).to(torch.int8).argmax(0, keepdim=True) for off in (-TIE, TIE))
        return (values.gather(0, lower) + values.gather(0, upper))[0] / 2, r.state
