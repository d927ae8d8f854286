from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.options import default
from fedbraid.core.outputs import Outputs
from fedbraid.core.strand import Client, Strand


@dataclass(frozen=True)
class Decorr(Strand):
    """Decorrelate the dimensions of the features, against dimensional collapse.

    With Z the batch's features, each dimension scaled to mean 0 and variance 1, and N samples: the authors' code adds
    β / N times the mean squared off-diagonal entry of ZᵀZ, about N times the paper's β / d² ‖corr(Z)‖²_F, and β = 0.1
    belongs to the code; `scale="paper"` is the formula as printed. β = 0 is FedAvg.
    """

    title = "FedDecorr (Shi et al., 2023)"
    neutral = {"beta": 0.0}

    beta: float = default(0.1, least=0)
    scale: Literal["code", "paper"] = "code"

    def loss(self, out: Outputs, batch: Batch, c: Client) -> Tensor:
        n, d = batch.mask.sum().clamp(min=1), out.features.shape[1]
        z = (out.features - batch.mean(out.features)) * batch.mask[:, None]
        variance = z.square().sum(0) / (n - 1).clamp(min=1)
        z = z / (variance + 1e-8).sqrt()
        product = z.T @ z
        if self.scale == "paper":
            return self.beta * (product / (n - 1).clamp(min=1)).square().sum() / d**2
        off_diagonal = product.square().sum() - product.diagonal().square().sum()
        return self.beta * off_diagonal / max(1, d * (d - 1)) / n
