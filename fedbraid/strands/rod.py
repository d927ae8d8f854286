from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.constraints import Constraints
from fedbraid.core.last_layer import CALLED
from fedbraid.core.options import default
from fedbraid.core.outputs import Outputs
from fedbraid.core.strand import Client, Setup, Strand
from fedbraid.core.tree import Tree
from fedbraid.errors import UserError
from fedbraid.strands.distil import NEVER
from fedbraid.strands.lc import ADJUSTS


@dataclass(frozen=True)
class Rod(Strand):
    """A generic head trained with balanced softmax, and a personal head on top of it that never leaves the client.

    Generic: cross-entropy of z_c + γ log n_c. A class that the client lacks leaves its softmax; `missing` > 0 counts it
    as so many samples instead. Personal: an extra linear head on the features, trained by plain SGD on the ordinary
    cross-entropy of generic plus personal logits, both taken as they are, so that it does not touch the shared model.
    The client's own model has both heads (the analysis `personal` measures it).
    γ = 0 with `missing` > 0 trains the shared model as FedAvg does.
    """

    title = "FedROD (Chen & Chao, 2022)"
    neutral = {"gamma": 0.0, "missing": 1.0}
    constraints = Constraints(needs={"labels"}, claims=(ADJUSTS,))

    gamma: float = default(1.0, least=0)
    missing: float = default(0.0, least=0)
    personal: bool = True

    def init_client(self, setup: Setup) -> Tree:
        if not self.personal:
            return {}
        return {"weight": setup.w.new_zeros(setup.classes, setup.width), "bias": setup.w.new_zeros(setup.classes)}

    def begin(self, w: Tensor, c: Client) -> Tree:
        return c.state

    def logits(self, logits: Tensor, batch: Batch, c: Client) -> Tensor:
        n = torch.where(c.label_counts > 0, c.label_counts, self.missing or 1.0)
        balanced = logits + self.gamma * n.log()
        return balanced if self.missing else torch.where(c.label_counts > 0, balanced, NEVER)

    def step(self, w: Tensor, out: Outputs, batch: Batch, c: Client) -> Tree:
        if not self.personal:
            return c.memory
        mine = out.logits + out.features @ c.memory["weight"].T + c.memory["bias"]
        slope = (mine.softmax(-1) - batch.y) * (batch.mask / batch.mask.sum().clamp(min=1))[:, None]
        return {
            "weight": c.memory["weight"] - c.lr * slope.T @ out.features,
            "bias": c.memory["bias"] - c.lr * slope.sum(0),
        }

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        return {}, c.memory

    def personalise(self, w: Tensor, state: Tree, setup: Setup) -> Tensor:
        if not self.personal:
            return w
        views = setup.layout.views(w)
        head = {setup.of_last_layer(name): own for name, own in state.items()}
        if not head.keys() <= views.keys():
            raise UserError(f"rod's personal head adds to the network's last layer; it must be an nn.Linear, {CALLED}")
        return setup.layout.flatten(views | {name: views[name] + own for name, own in head.items()})
