from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Client, Strand
from fedbraid.strands.lc import ADJUSTS


@dataclass(frozen=True)
class Rs(Strand):
    """Restricted softmax: logits of classes that the client lacks are scaled down in training.

    z_c ← α z_c for a class without samples; `scale="proportional"` has z_c ← (α + (1 − α) n_c / max n) z_c, which the
    authors' code applies before the bias. A negative logit is raised by it, and α = 0 makes a missing class's logit 0
    instead of removing the class. α = 1 is FedAvg.
    """

    title = "FedRS (Li & Zhan, 2021)"
    neutral = {"alpha": 1.0}
    constraints = Constraints(needs={"labels"}, claims=(ADJUSTS,))

    alpha: float = default(0.5, least=0, most=1)
    scale: Literal["binary", "proportional"] = "binary"

    def logits(self, logits: Tensor, batch: Batch, c: Client) -> Tensor:
        n = c.label_counts
        has = n / n.max() if self.scale == "proportional" else (n > 0).to(logits.dtype)
        return torch.where(has == 1, logits, (self.alpha + (1 - self.alpha) * has) * logits)
