from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Client, Gradient, Strand

PERTURBS = "choose the point at which the gradient is taken"


@dataclass(frozen=True)
class Sam(Strand):
    """Sharpness-aware local steps: the gradient is taken where the loss is worst nearby.

    g₁ = g(w), g₂ = g(w + ρ g₁ / ‖g₁‖); the step uses (1 − mix) g₁ + mix g₂ (mix = 1 for FedSAM; FedSpeed's α).
    `adaptive` is ASAM: with T = |w| + eta on weights and 1 on biases, the perturbation is ρ T² g₁ / ‖T g₁‖.
    Corrections of other strands and weight decay are not part of the ascent, wherever listed. ρ = 0 is FedAvg.
    """

    title = "FedSAM, FedASAM (Caldarola et al., 2022)"
    neutral = {"rho": 0.0}
    constraints = Constraints(claims=(PERTURBS,), first_in={"grad"})

    rho: float = default(0.1, least=0)
    mix: float = default(1.0, least=0, most=1)
    adaptive: bool = False
    eta: float = default(0.2, least=0, beside="adaptive")

    def grad(self, w: Tensor, c: Client, next: Gradient) -> Tensor:
        g = next(w)
        scale = self._scale(w, c) if self.adaptive else 1.0
        norm = (scale * g).square().sum().sqrt().clamp(min=1e-16)
        worst = next(w + self.rho * scale * scale * g / norm)
        return worst if self.mix == 1 else (1 - self.mix) * g + self.mix * worst

    def _scale(self, w: Tensor, c: Client) -> Tensor:
        parts = {k: v.abs() + self.eta if "weight" in k else torch.ones_like(v) for k, v in c.layout.views(w).items()}
        return c.layout.flatten(parts)
