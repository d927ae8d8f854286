from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedbraid.core.constraints import Constraints
from fedbraid.core.last_layer import CALLED
from fedbraid.core.options import default
from fedbraid.core.random import stream
from fedbraid.core.strand import Client, Round, Setup, Strand
from fedbraid.core.tree import Tree
from fedbraid.errors import UserError
from fedbraid.strands.nh import HEAD


@dataclass(frozen=True)
class Creff(Strand):
    """Classifier re-training with federated features.

    Clients send, class by class, the gradient of a head ψ on their features under the received model. The server keeps
    `per_class` features of each class and moves them (`match_steps` steps) until ψ's gradient on them points as the
    clients' mean gradient does; then it trains a fresh head on them, which is the next ψ. The network goes on with its
    own head, which ψ replaces in the model that is evaluated and handed out.

    The gradient of a class is over all of the client's samples of it; the authors' code averages ten draws of at most
    32 images. Classes that a client lacks are sent as zeros.
    """

    title = "CReFF (Shang et al., 2022)"
    constraints = Constraints(needs={"labels"}, claims=(HEAD,), sum_only={"weight", "bias", "has"})

    per_class: int = default(100, least=1)
    match_steps: int = default(100, least=0)
    match_lr: float = default(0.1, least=0)
    head_epochs: int = default(300, least=0)
    head_lr: float = default(0.01, least=0)
    head_batch: int = default(32, least=1)

    def init_server(self, setup: Setup) -> Tree:
        rng = stream(setup.seed, "creff features")
        features = torch.as_tensor(rng.normal(size=(setup.classes, self.per_class, setup.width))).to(setup.w)
        views = setup.layout.views(setup.w)
        weight, bias = (setup.of_last_layer(name) for name in ("weight", "bias"))
        if weight not in views or bias not in views:
            raise UserError(
                f"creff trains the network's last layer anew; it must be an nn.Linear with a bias, {CALLED}"
            )
        return {"features": features, "weight": views[weight].clone(), "bias": views[bias].clone()}

    def send(self, r: Round) -> Tree:
        return {"weight": r.state["weight"], "bias": r.state["bias"]}

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        head = c.received["weight"], c.received["bias"]
        sums = c.over_data(c.received_model, lambda out, b: _head_gradients(out.features, b.y * b.mask[:, None], *head))
        n = c.label_counts.clamp(min=1)
        mean = {"weight": sums["weight"] / n[:, None, None], "bias": sums["bias"] / n[:, None]}
        return mean | {"has": (c.label_counts > 0).to(w.dtype)}, c.state

    def absorb(self, r: Round) -> Tree:
        has = r.sum("has")
        real = {
            "weight": r.sum("weight") / has.clamp(min=1)[:, None, None],
            "bias": r.sum("bias") / has.clamp(min=1)[:, None],
        }
        features = self._matched(r.state["features"], (r.state["weight"], r.state["bias"]), real, has > 0)
        return {"features": features, **self._head(features, r.rng)}

    def deploy(self, w: Tensor, state: Tree, setup: Setup) -> Tensor:
        head = {setup.of_last_layer(name): state[name] for name in ("weight", "bias")}
        return setup.layout.flatten(setup.layout.views(w) | head)

    def _matched(self, features: Tensor, head: tuple[Tensor, Tensor], real: Tree, has: Tensor) -> Tensor:
        """Features whose gradients point as the real ones do; classes nobody has stay as they are."""
        labels = torch.eye(len(features), device=features.device, dtype=features.dtype)
        for _ in range(self.match_steps):
            moving = features.detach().requires_grad_()
            with torch.enable_grad():
                error = F.linear(moving, *head).softmax(-1) - labels[:, None, :]  # [C, m, C]
                weight = torch.einsum("cmk,cmd->ckd", error, moving) / self.per_class
                bias = error.mean(1)
                gap = _angle(weight, real["weight"]).sum(-1) + _angle(bias, real["bias"])
                (slope,) = torch.autograd.grad((gap * has).sum(), moving)
            features = features - self.match_lr * slope
        return features

    def _head(self, features: Tensor, rng: np.random.Generator) -> Tree:
        """A fresh linear head trained on the features by plain SGD."""
        classes, _, width = features.shape
        x = features.flatten(0, 1)
        y = torch.arange(classes, device=x.device).repeat_interleave(self.per_class)
        bound = width**-0.5
        weight, bias = (
            torch.as_tensor(rng.uniform(-bound, bound, size)).to(x) for size in ((classes, width), (classes,))
        )
        for _ in range(self.head_epochs):
            order = torch.as_tensor(rng.permutation(len(x)), device=x.device)
            for part in torch.split(order, self.head_batch):
                error = (F.linear(x[part], weight, bias).softmax(-1) - F.one_hot(y[part], classes)) / len(part)
                weight, bias = weight - self.head_lr * error.T @ x[part], bias - self.head_lr * error.sum(0)
        return {"weight": weight, "bias": bias}


def _angle(made: Tensor, real: Tensor) -> Tensor:
    """1 − cosine over the last axis, with the authors' 1e-6 beside the norms: small gradients weigh less."""
    norms: Tensor = torch.linalg.vector_norm(made, dim=-1) * torch.linalg.vector_norm(real, dim=-1)
    angle: Tensor = 1 - (made * real).sum(-1) / (norms + 1e-6)
    return angle


def _head_gradients(features: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tree:
    """Sums over samples, class by class, of the head's cross-entropy gradients: [C, C, d] and [C, C]."""
    error = F.linear(features, weight, bias).softmax(-1) - y
    return {"weight": torch.einsum("nc,nk,nd->ckd", y, error, features), "bias": torch.einsum("nc,nk->ck", y, error)}
