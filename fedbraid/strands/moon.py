from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.options import default
from fedbraid.core.outputs import Outputs
from fedbraid.core.strand import Client, Setup, Strand, View
from fedbraid.core.tree import Tree


@dataclass(frozen=True)
class Moon(Strand):
    """Model-contrastive learning: features near the received model's, far from one's own previous model's.

    L_k + μ mean −log[e^{cos(z, z_g)/τ} / (e^{cos(z, z_g)/τ} + e^{cos(z, z_p)/τ})]. The term is 0 until the client has a
    previous model. z are the features that the last layer receives: build the model with `projection=256` for the
    paper's projection head, for every method of a comparison alike. μ = 0 is FedAvg.
    """

    title = "MOON (Li et al., 2021)"
    neutral = {"mu": 0.0}

    mu: float = default(1.0, least=0)
    temperature: float = default(0.5, above=0)

    def init_client(self, setup: Setup) -> Tree:
        return {"model": setup.w, "buffers": setup.buffers, "has": setup.w.new_zeros(())}

    def views(self, c: Client) -> dict[str, View]:
        return {"received": c.received_model, "previous": (c.state["model"], c.state["buffers"])}

    def loss(self, out: Outputs, batch: Batch, c: Client) -> Tensor:
        near, far = (
            F.cosine_similarity(out.features, c.views[view].features, dim=-1) / self.temperature
            for view in ("received", "previous")
        )
        return self.mu * c.state["has"] * batch.mean(F.softplus(far - near))

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        return {}, {"model": w, "buffers": c.trained_buffers, "has": torch.ones_like(c.state["has"])}
