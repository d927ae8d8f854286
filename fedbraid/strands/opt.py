from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Round, Setup, Strand
from fedbraid.core.tree import Tree
from fedbraid.errors import UserError
from fedbraid.strands.avgm import SERVER_OPTIMISER


@dataclass(frozen=True)
class Opt(Strand):
    """An adaptive optimiser on the server (Algorithm 2): the mean update is its gradient.

    m ← β₁ m + (1 − β₁) Δ;  v ← v + Δ² (adagrad), β₂ v + (1 − β₂) Δ² (adam), v − (1 − β₂) Δ² sign(v − Δ²) (yogi);
    x ← x + η m / (√v + τ). No bias correction, as in the algorithm; `bias_correction` is what the authors' code has.
    `v0` is the accumulator's initial value: 0 as in their experiments, τ² as in the algorithm.
    """

    title = "FedOpt (Reddi et al., 2021)"
    averages = "uniform"
    constraints = Constraints(claims=(SERVER_OPTIMISER,))

    kind: Literal["adam", "yogi", "adagrad"] = "adam"
    lr: float = default(0.1, above=0)
    beta1: float = default(0.9, least=0, below=1)
    beta2: float = default(0.99, least=0, below=1, beside=("kind=adam", "kind=yogi"))
    tau: float = default(1e-3, above=0)
    v0: float = default(0.0, least=0)
    bias_correction: bool = False

    def __post_init__(self) -> None:
        if self.kind == "adagrad" and self.bias_correction:
            raise UserError("adagrad sums squares and has no bias to correct; leave bias_correction out")

    def init_server(self, setup: Setup) -> Tree:
        return {"m": torch.zeros_like(setup.w), "v": torch.full_like(setup.w, self.v0), "t": setup.w.new_zeros(())}

    def update(self, delta: Tensor, r: Round) -> tuple[Tensor | None, Tree]:
        m, v, t, square = r.state["m"], r.state["v"], r.state["t"] + 1, delta.square()
        m = self.beta1 * m + (1 - self.beta1) * delta
        if self.kind == "adagrad":
            v = v + square
        elif self.kind == "adam":
            v = self.beta2 * v + (1 - self.beta2) * square
        else:
            v = v - (1 - self.beta2) * square * torch.sign(v - square)
        lr = self.lr * (1 - self.beta2**t).sqrt() / (1 - self.beta1**t) if self.bias_correction else self.lr
        return lr * m / (v.sqrt() + self.tau), {"m": m, "v": v, "t": t}
