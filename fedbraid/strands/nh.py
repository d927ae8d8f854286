from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbraid.core.constraints import Constraints
from fedbraid.core.last_layer import CALLED, last_layer
from fedbraid.core.options import default
from fedbraid.core.strand import Client, Round, Strand
from fedbraid.core.tree import Tree
from fedbraid.errors import UserError

HEAD = "replace the network's head"


@dataclass(frozen=True)
class Nh(Strand):
    """A non-parametric head: class prototypes that start orthogonal and follow the clients' class means.

    logits = s ⟨f / ‖f‖, W_c⟩. W travels and is not trained. After training a client sends n_c μ_c, μ_c the direction of
    its mean unit feature of class c; the server sets W_c ← normalise(ρ W_c + (1 − ρ) normalise(Σ n_c μ_c / Σ n_c));
    classes that nobody in the cohort has stay. The scale s is trained and averaged, unless `train_scale` is False.
    """

    title = "FedNH (Dai et al., 2023)"
    averages = "uniform"
    constraints = Constraints(
        needs={"labels"},
        claims=(HEAD,),
        sum_only={"mean", "n"},
        last_in={"update"},  # prototypes are set, not stepped to
    )

    rho: float = default(0.9, least=0, most=1)
    scale: float = default(1.0, above=0)
    train_scale: bool = True

    def model(self, module: nn.Module) -> nn.Module:
        name, head = linear_head(module, self.name)
        module.set_submodule(name, PrototypeHead(head, self.scale, self.train_scale))
        return module

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        sums = c.over_data(w, lambda out, b: {"f": (b.y * b.mask[:, None]).T @ F.normalize(out.features, dim=-1)})
        return {"mean": c.label_counts[:, None] * F.normalize(sums["f"], dim=-1), "n": c.label_counts}, c.state

    def update(self, delta: Tensor, r: Round) -> tuple[Tensor | None, Tree]:
        n = r.sum("n")[:, None]
        weight = r.setup.of_last_layer("weight")
        old = r.setup.layout.views(r.w)[weight]
        mean = F.normalize(r.sum("mean") / n.clamp(min=1), dim=-1)
        new = torch.where(n > 0, F.normalize(self.rho * old + (1 - self.rho) * mean, dim=-1), old)
        span = r.setup.layout.span(weight)
        return torch.cat([delta[: span.start], (new - old).reshape(-1), delta[span.stop :]]), r.state


def linear_head(module: nn.Module, strand: str) -> tuple[str, nn.Linear]:
    """Return a network's last layer and its name; refuse one that is no `nn.Linear` within the network."""
    name = last_layer(module)
    head = dict(module.named_modules()).get(name)
    if not isinstance(head, nn.Linear) or head is module:
        raise UserError(
            f"{strand} replaces the network's last layer; it must be an nn.Linear within the network, {CALLED}"
        )
    return name, head


class PrototypeHead(nn.Module):
    """Cosine to unit prototypes, times a scale."""

    def __init__(self, head: nn.Linear, scale: float, train_scale: bool) -> None:
        super().__init__()
        rows = torch.linalg.qr(head.weight.detach().T)[0].T if head.in_features >= head.out_features else head.weight
        self.weight = nn.Parameter(F.normalize(rows.detach(), dim=-1).contiguous(), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(scale), requires_grad=train_scale)

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * F.normalize(features, dim=-1) @ self.weight.T
