from dataclasses import dataclass

from torch import Tensor

from fedbraid.core.options import default
from fedbraid.core.strand import Client, Gradient, Strand


@dataclass(frozen=True)
class Prox(Strand):
    """Keep near the received model: F_k(w) + μ/2 ‖w − w₀‖².

    The term is part of the gradient, so local momentum sees it. μ = 0 is FedAvg.
    """

    title = "FedProx (Li et al., 2020)"
    neutral = {"mu": 0.0}

    mu: float = default(0.01, least=0)

    def grad(self, w: Tensor, c: Client, next: Gradient) -> Tensor:
        return next(w) + self.mu * (w - c.start)
