from dataclasses import dataclass
from math import inf

from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.constraints import Constraints
from fedbraid.core.optimizer import Sgd
from fedbraid.core.options import default
from fedbraid.core.outputs import Outputs
from fedbraid.core.strand import Client, Round, Strand
from fedbraid.core.tree import Tree
from fedbraid.strands.qfair import NO_MEAN


@dataclass(frozen=True)
class Nova(Strand):
    """Normalised averaging: an update counts by its direction, not by how many steps were taken.

    x ← x + Σ_k τ_eff p_k / ‖a_k‖₁ (w_k − x) with τ_eff = Σ p_k ‖a_k‖₁. ‖a_k‖₁ is how far the client's local solver
    moves under a unit gradient at rate 1; it is followed step by step, momentum and a proximal pull included (`mu` is
    taken from `prox` in the same chain). `steps_effective` takes τ_eff = Σ p_k τ_k, as the authors' code does then.
    """

    title = "FedNova (Wang et al., 2020)"
    constraints = Constraints(
        takes={"mu": "prox.mu"}, excludes={"drift": NO_MEAN}, within={"a": (0.0, inf), "steps": (0.0, inf)}
    )

    mu: float = default(0.0, least=0)
    steps_effective: bool = False

    def begin(self, w: Tensor, c: Client) -> Tree:
        return {"v": w.new_zeros(()), "a": w.new_zeros(())}

    def step(self, w: Tensor, out: Outputs, batch: Batch, c: Client) -> Tree:
        rho = c.optimizer.momentum if isinstance(c.optimizer, Sgd) else 0.0
        g = 1 - c.lr * self.mu * c.memory["a"]  # the pull back to the start, in units of the gradient
        v = rho * c.memory["v"] + g
        nesterov = isinstance(c.optimizer, Sgd) and c.optimizer.nesterov
        return {"v": v, "a": c.memory["a"] + (g + rho * v if nesterov else v)}

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        uploads = {"a": c.memory["a"]}
        return (uploads | {"steps": c.steps} if self.steps_effective else uploads), c.state

    def rescale(self, weights: Tensor, r: Round) -> Tensor:
        a = r.each("a")
        effective = (weights * (r.each("steps") if self.steps_effective else a)).sum()
        return weights * effective / a
