from dataclasses import dataclass
from math import inf

from torch import Tensor

from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Client, Round, Strand
from fedbraid.core.task import sample_losses
from fedbraid.core.tree import Tree

NO_MEAN = "its weights do not sum to 1, so that the model handed out would be no mean"


@dataclass(frozen=True)
class QFair(Strand):
    """Fairness: clients with a larger loss count more.

    With L = 1 / η, F_k the loss of the received model on the client's data and Δw_k = L (x − w_k):
    x ← x − Σ F_k^q Δw_k / Σ (q F_k^{q−1} ‖Δw_k‖² + L F_k^q), sums over the cohort. q = 0 is the plain mean. Where
    another strand sets weights p_k, each term of the first sum counts K p_k times. L stands for how smooth the loss is:
    1 / η is a poor guess of that under optimisers other than SGD, where a large q then hardly moves the model.
    """

    title = "q-FedAvg (Li et al., 2020)"
    averages = "uniform"
    neutral = {"q": 0.0}
    constraints = Constraints(
        excludes={"drift": NO_MEAN, "nova": "both rescale the same updates"},
        within={"loss": (0.0, inf), "square": (0.0, inf)},
    )

    q: float = default(1.0, least=0)

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        total = c.over_data(
            c.received_model, lambda out, b: {"f": (sample_losses(c.task, out.logits, b) * b.mask).sum()}
        )
        return {"loss": total["f"] / c.size, "square": (c.start - w).square().sum()}, c.state

    def rescale(self, weights: Tensor, r: Round) -> Tensor:
        if not self.q:
            return weights
        lipschitz, f = 1 / r.lr, r.each("loss") + 1e-10
        square = lipschitz**2 * r.each("square")
        h = self.q * f ** (self.q - 1) * square + lipschitz * f**self.q
        return len(weights) * weights * lipschitz * f**self.q / h.sum()
