"""FedACD with one thing changed each: what its logit shifts do without Mixup (docs/reproduction.md)."""

from dataclasses import dataclass

import torch

from fedbraid.strands.acd import Acd


@dataclass(frozen=True)
class PerRound(Acd):
    """P once a round, from the received model."""

    name = "acd_round"
    every_epoch = False


@dataclass(frozen=True)
class Bound(Acd):
    """Shifts between the client's own classes held within ± `most`."""

    name = "acd_bound"
    most: float = 3.0

    def begin(self, w, c):
        shift = super().begin(w, c)["shift"]
        return {"shift": torch.where(c.label_counts > 0, shift.clamp(-self.most, self.most), shift)}
