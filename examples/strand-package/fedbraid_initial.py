"""A strand of a package of its own: a start for yours."""

from dataclasses import dataclass

from torch import Tensor

import fedbraid as fb


@dataclass(frozen=True)
class Initial(fb.Strand):
    """Keep near the federation's first model: F_k(w) + μ/2 ‖w − w₀‖². μ = 0 is FedAvg."""

    title = "Your paper (you, this year)"
    neutral = {"mu": 0.0}

    mu: float = 0.01

    def grad(self, w: Tensor, c: fb.Client, next) -> Tensor:
        first, _ = c.initial
        return next(w) + self.mu * (w - first)
