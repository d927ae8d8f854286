from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbraid.core.constraints import Constraints
from fedbraid.core.options import default
from fedbraid.core.strand import Strand
from fedbraid.errors import UserError
from fedbraid.strands.nh import HEAD, linear_head


@dataclass(frozen=True)
class Etf(Strand):
    """A fixed head whose class vectors are the corners of a simplex; FedETF with balanced softmax (`rod`).

    logits = s ⟨v / ‖v‖, M_c⟩, v = A f + b a trained linear projection of the features to as many dimensions as
    there are classes, M = √(C / (C − 1)) (I − 11ᵀ / C) fixed, s trained. Any rotation of M is as good, since A is
    trained. The authors' code draws one, and leaves s out in evaluation, where it changes the loss and no prediction.
    """

    title = "FedETF's head (Li et al., 2023)"
    constraints = Constraints(needs={"labels"}, claims=(HEAD,))

    scale: float = default(1.0, above=0)

    def model(self, module: nn.Module) -> nn.Module:
        name, head = linear_head(module, self.name)
        if head.out_features < 2:
            raise UserError("etf has a corner for each class, and there is only one; leave it out")
        module.set_submodule(name, SimplexHead(head, self.scale))
        return module


@dataclass(frozen=True)
class Babu(Strand):
    """The body alone is trained and averaged: the head keeps its first weights, which are the same for all clients.

    A client's own model comes from fine-tuning afterwards, which the analysis `personal` measures (`tuned`).
    """

    title = "FedBABU (Oh et al., 2022)"
    constraints = Constraints(claims=(HEAD,))

    def model(self, module: nn.Module) -> nn.Module:
        _, head = linear_head(module, self.name)
        head.requires_grad_(False)
        return module


class SimplexHead(nn.Module):
    """Cosine of a trained projection to the corners of a fixed simplex, times a trained scale."""

    def __init__(self, head: nn.Linear, scale: float) -> None:
        super().__init__()
        classes = head.out_features
        self.projection = nn.Linear(head.in_features, classes)
        with torch.no_grad():  # the head's own first weights, so that networks are made from the run's seed
            self.projection.weight.copy_(head.weight)
            self.projection.bias.copy_(torch.zeros(classes) if head.bias is None else head.bias)
        corners = (classes / (classes - 1)) ** 0.5 * (torch.eye(classes) - 1 / classes)
        self.weight = nn.Parameter(corners, requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * F.normalize(self.projection(features), dim=-1) @ self.weight.T
