from dataclasses import dataclass, replace

from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.chain import refuse
from fedbraid.core.optimizer import Sgd
from fedbraid.core.options import default
from fedbraid.core.outputs import Outputs
from fedbraid.core.strand import Client, Round, Strand
from fedbraid.core.tree import Tree
from fedbraid.errors import UserError
from fedbraid.strands.qfair import NO_MEAN


@dataclass(frozen=True)
class Nova(Strand):
    """Normalised averaging: an update counts by its direction, not by how many steps were taken.

    x ← x + Σ_k τ_eff p_k / ‖a_k‖₁ (w_k − x) with τ_eff = Σ p_k ‖a_k‖₁. ‖a_k‖₁ is how far the client's local solver
    moves under a unit gradient at rate 1; it is followed step by step, momentum and a proximal pull included (`mu` is
    taken from `prox` in the same chain). `steps_effective` takes τ_eff = Σ p_k τ_k, as the authors' code does then.
    """

    title = "FedNova (Wang et al., 2020)"

    mu: float = default(0.0, least=0)
    steps_effective: bool = False

    def among(self, others: tuple[Strand, ...]) -> Strand:
        refuse(self, others, {"drift": NO_MEAN})
        pulls = [getattr(o, "mu", 0.0) for o in others if o.name == "prox"]
        if pulls and self.mu not in (0.0, pulls[0]):
            raise UserError(f"nova's mu is {self.mu} and prox's {pulls[0]}; leave nova's out, it takes prox's")
        return replace(self, mu=pulls[0]) if pulls else self

    def unheard(self, others: tuple[Strand, ...]) -> str:
        if not self.mu or any(o.name == "prox" for o in others):
            return ""
        told = f"nova's mu={self.mu} is for the pull of prox, and there is none"
        return f"{told}; leave it out, or write nova+prox(mu={self.mu})"

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
        return (uploads | {"steps": c.steps} if self.steps_effective else uploads), c.kept

    def rescale(self, weights: Tensor, r: Round) -> Tensor:
        a = r.each("a")
        effective = (weights * (r.each("steps") if self.steps_effective else a)).sum()
        return weights * effective / a
