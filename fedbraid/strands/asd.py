from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.constraints import THREE_CLASSES, Constraints
from fedbraid.core.options import default
from fedbraid.core.outputs import Outputs
from fedbraid.core.strand import Client, Strand, View
from fedbraid.strands.distil import divergence, entropy, without_true_class


@dataclass(frozen=True)
class Asd(Strand):
    """Adaptive self-distillation: stay near the received model where it is sure and labels are rare.

    L_k + λ Σ_i α_i KL(q_g ‖ q_k) with q = softmax(z / τ), α_i ∝ exp(−H(x_i)) / p_k^{y_i}, summing to 1 over the batch
    (eq. 5–12). λ is "in units of the batch size" as in the paper: 10 on CIFAR-10, 30 on CIFAR-100, 20 on Tiny-ImageNet.

    The entropy is that of the plain softmax, as in the authors' FedAvg+ASD; `entropy="temperature"` follows eq. 6 and
    11 to the letter. Beside FedNTD the divergence is over the classes that are not the true one
    (eq. 17–19), whose probabilities are made to sum to 1 as in the authors' code; eq. 17 leaves them as they are.
    """

    title = "ASD (Yashwanth et al., 2024)"
    neutral = {"lam": 0.0}

    lam: float = default(10.0, least=0)
    temperature: float = default(2.0, above=0)
    entropy: Literal["plain", "temperature"] = default("plain", beside="weights=adaptive")
    divergence: Literal["kl", "reverse", "js"] = "kl"
    weights: Literal["adaptive", "uniform"] = "adaptive"
    not_true: bool = False

    @property
    def constraints(self) -> Constraints:
        return Constraints(needs={"labels", *([THREE_CLASSES] if self.not_true else [])}, takes={"not_true": "ntd"})

    def views(self, c: Client) -> dict[str, View]:
        return {"received": c.received_model}

    def loss(self, out: Outputs, batch: Batch, c: Client) -> Tensor:
        teacher, student = c.views["received"].logits, out.logits
        sharpness = self.temperature if self.entropy == "temperature" else 1.0
        alpha = batch.mask
        if self.weights == "adaptive":
            rarity = (batch.y * c.label_counts / c.size).sum(-1).clamp(min=1e-12)  # p_k of the label, eq. 12
            alpha = alpha * torch.exp(-entropy(teacher / sharpness)) / rarity  # eq. 10
        alpha = alpha / alpha.sum().clamp(min=1e-12)  # eq. 9
        if self.not_true:
            teacher, student = (without_true_class(z, batch.y) for z in (teacher, student))
        d = divergence(teacher / self.temperature, student / self.temperature, self.divergence)  # eq. 8
        return self.lam * (alpha * d).sum()  # eq. 5
