from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbraid.core.constraints import AS_TRAINED, Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Client, Gradient, Round, Setup, Strand
from fedbraid.core.tree import Tree


@dataclass(frozen=True)
class Drift(Strand):
    """A dual variable for each client: FedDyn by itself, FedSpeed with `sam`, FedDC with `scaffold`.

    With h_k the sum of what local training has moved, in the units of the model (FedDyn's −∇L_k / α): the gradient is
    g + α (w − θ + h_k), afterwards h_k ← h_k + w_k − θ, and the server adds the mean of all clients' h to the mean of
    the models. Clients start from that shifted model θ; the mean itself is evaluated and handed out.

    FedSpeed's and FedDC's papers add the cohort's own h instead (`added="cohort"`): the same under full participation,
    but it does not settle when only some clients take part; their code adds everybody's.

    Averaged uniformly it reaches the uniform optimum. `by_size` divides α by the client's relative size, as the
    authors' code does: then the fixed point is the optimum weighted by data.
    """

    title = "FedDyn (Acar et al., 2021)"
    averages = "uniform"

    alpha: float = default(0.01, above=0)
    by_size: bool = False
    added: Literal["all", "cohort"] = "all"

    @property
    def constraints(self) -> Constraints:
        return Constraints(
            needs={AS_TRAINED},  # the server learns from it what h_k became
            sum_only={"h"} if self.added == "cohort" else set(),
            first_in={"deploy"},
            last_in={"update"},  # what is added is what `deploy` takes away again
        )

    def init_server(self, setup: Setup) -> Tree:
        return {"h": torch.zeros_like(setup.w), "added": torch.zeros_like(setup.w)}

    def init_client(self, setup: Setup) -> Tree:
        return {"h": torch.zeros_like(setup.w)}

    def grad(self, w: Tensor, c: Client, next: Gradient) -> Tensor:
        alpha = self.alpha / c.relative_size if self.by_size else self.alpha
        return next(w) + alpha * (w - c.start + c.state["h"])

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        h = c.state["h"] + w - c.start
        return ({"h": h} if self.added == "cohort" else {}), {"h": h}

    def absorb(self, r: Round) -> Tree:
        everybody = r.state["h"] + r.moved / r.setup.population
        h = everybody if self.added == "all" else r.sum("h", r.ones / len(r.cohort))
        return {"h": h, "added": r.state["added"]}

    def update(self, delta: Tensor, r: Round) -> tuple[Tensor | None, Tree]:
        return delta + r.state["h"], {"h": r.state["h"], "added": r.state["h"]}

    def deploy(self, w: Tensor, state: Tree, setup: Setup) -> Tensor:
        return w - state["added"]  # the mean of the clients' models, not the model they start from
