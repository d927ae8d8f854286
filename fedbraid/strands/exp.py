from dataclasses import dataclass

from torch import Tensor

from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Client, Round, Setup, Strand
from fedbraid.core.tree import Tree


@dataclass(frozen=True)
class Exp(Strand):
    """Extrapolation: a longer server step the more clients' updates disagree.

    x ← x + η Δ with η = max(1, Σ p_k ‖Δ_k‖² / (2 (‖Δ‖² + ε))), Δ = Σ p_k Δ_k. What is evaluated and handed out is the
    mean of the last two models (`average`); clients receive x. The authors' code has ε times the number of clients, and
    lets it shrink with the learning rate. Without `average` and with a huge ε it is FedAvg.
    """

    title = "FedExP (Jhunjhunwala et al., 2023)"
    neutral = {"eps": 1e30, "average": False}
    constraints = Constraints(
        excludes={
            "drift": "exp averages two models with drift's sum in them, and drift takes it out of the last one only",
            "skip": "exp compares updates with their mean, and beside skip clients start from other models",
            "dp": "exp takes the lengths of clients' updates, which noise on the step does not hide",
        }
    )

    eps: float = default(0.001, least=0)
    average: bool = True

    def init_server(self, setup: Setup) -> Tree:
        return {"before": setup.w}

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        return {"square": (w - c.received_model[0]).square().sum()}, c.state

    def update(self, delta: Tensor, r: Round) -> tuple[Tensor | None, Tree]:
        ratio = r.sum("square", r.weights) / (2 * (delta.square().sum() + self.eps)).clamp(min=1e-30)
        return ratio.clamp(min=1.0) * delta, {"before": r.w}

    def deploy(self, w: Tensor, state: Tree, setup: Setup) -> Tensor:
        return (w + state["before"]) / 2 if self.average else w
