from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Client, Strand
from fedbraid.strands.distil import NEVER

ADJUSTS = "adjust logits by the client's classes"


@dataclass(frozen=True)
class Lc(Strand):
    """Calibrated logits: cross-entropy of z_c − τ n_c^{−1/4}, n_c the client's samples of class c.

    A class that the client lacks leaves its softmax, the formula's limit; `missing` > 0 counts it as so many samples
    instead. Only training sees the calibration. τ = 0 with `missing` > 0 is FedAvg.
    """

    title = "FedLC (Zhang et al., 2022)"
    neutral = {"tau": 0.0, "missing": 1.0}
    constraints = Constraints(needs={"labels"}, claims=(ADJUSTS,))

    tau: float = default(1.0, least=0)
    missing: float = default(0.0, least=0)

    def logits(self, logits: Tensor, batch: Batch, c: Client) -> Tensor:
        n = torch.where(c.label_counts > 0, c.label_counts, self.missing or 1.0)
        calibrated = logits - self.tau * n**-0.25
        return calibrated if self.missing else torch.where(c.label_counts > 0, calibrated, NEVER)
