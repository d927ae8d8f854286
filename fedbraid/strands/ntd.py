from dataclasses import dataclass

from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.constraints import THREE_CLASSES, Constraints
from fedbraid.core.options import default
from fedbraid.core.outputs import Outputs
from fedbraid.core.strand import Client, Strand, View
from fedbraid.strands.distil import divergence, without_true_class


@dataclass(frozen=True)
class Ntd(Strand):
    """Not-true distillation: keep the received model's view of the classes a sample does not have.

    L_k + β τ² mean_i KL(q̃_g ‖ q̃_k), q̃ = softmax over the classes other than y_i at temperature τ. β = 0 is FedAvg.
    It takes three classes or more, so that two are left. Beside ASD, ASD's weights, strength and temperature take the
    place of the mean, β and τ (ASD's eq. 17–19), and `ntd` is written without any.
    """

    title = "FedNTD (Lee et al., 2022)"
    neutral = {"beta": 0.0}
    constraints = Constraints(needs={"labels", THREE_CLASSES}, replaced_by="asd")

    beta: float = default(1.0, least=0)
    temperature: float = default(1.0, above=0)

    def views(self, c: Client) -> dict[str, View]:
        return {"received": c.received_model}

    def loss(self, out: Outputs, batch: Batch, c: Client) -> Tensor:
        both = (c.views["received"].logits, out.logits)
        teacher, student = (without_true_class(z, batch.y) / self.temperature for z in both)
        return self.beta * self.temperature**2 * batch.mean(divergence(teacher, student))
