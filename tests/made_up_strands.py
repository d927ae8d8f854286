"""Strands made up for the tests: between them they use every hook."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.constraints import TASK_LOSS, Constraints
from fedbraid.core.outputs import Outputs
from fedbraid.core.strand import Batch, Client, Draws, Gradient, Round, Setup, Strand
from fedbraid.core.tree import Arrays, Ask, PerClient, Tree


@dataclass(frozen=True)
class Teach(Strand):
    """Stay near the logits of the received model and near the features of one's own previous model."""

    lam: float = 0.7
    mu: float = 0.3

    def init_client(self, setup: Setup) -> Tree:
        return {"w": setup.w, "b": setup.buffers}

    def views(self, c: Client) -> dict[str, tuple[Tensor, Tensor]]:
        return {"received": (c.start, c.buffers), "previous": (c.state["w"], c.state["b"])}

    def loss(self, out: Outputs, batch: Batch, c: Client) -> Tensor:
        logits = (out.logits - c.views["received"].logits).square().sum(-1)
        features = (out.features - c.views["previous"].features).square().sum(-1)
        return self.lam * batch.mean(logits) + self.mu * batch.mean(features)

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        return {}, {"w": w, "b": c.buffers}


@dataclass(frozen=True)
class Anchor(Strand):
    """Pull features to their class's mean under the model at the beginning of each local epoch."""

    every_epoch = True
    lam: float = 0.5

    def begin(self, w: Tensor, c: Client) -> Tree:
        sums = c.over_data(w, lambda out, batch: {"f": (batch.y * batch.mask[:, None]).mT @ out.features})
        calls = c.memory["calls"] + 1 if c.memory else torch.ones_like(c.size)
        return {"means": sums["f"] / c.label_counts.clamp(min=1)[:, None], "calls": calls}

    def loss(self, out: Outputs, batch: Batch, c: Client) -> Tensor:
        return self.lam * batch.mean((out.features - batch.y @ c.memory["means"]).square().sum(-1))

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        return dict(c.memory), {}


@dataclass(frozen=True)
class Fair(Strand):
    """Ask every client for its loss first; tell each its own rank by loss, and all the mean."""

    def probe(self, c: Client) -> Tree:
        def losses(out: Outputs, batch: Batch) -> Tree:
            return {"loss": -(batch.y * out.logits.log_softmax(-1) * batch.mask[:, None]).sum()}

        return {"loss": c.over_data(c.start, losses)["loss"] / c.size}

    def send(self, r: Round) -> PerClient | Ask:
        if r.replies is None:
            return Ask()
        loss = r.each("loss")
        return PerClient(factor=loss / loss.mean())

    def grad(self, w: Tensor, c: Client, next: Gradient) -> Tensor:
        return c.received["factor"] * next(w)


@dataclass(frozen=True)
class Tracker(Strand):
    """Remember a running mean of the logits, and hand it in."""

    def init_server(self, setup: Setup) -> Tree:
        return {"mean": torch.zeros(setup.classes, dtype=setup.w.dtype, device=setup.w.device)}

    def begin(self, w: Tensor, c: Client) -> Tree:
        return {"mean": torch.zeros_like(c.label_counts)}

    def step(self, w: Tensor, out: Outputs, batch: Batch, c: Client) -> Tree:
        return {"mean": 0.8 * c.memory["mean"] + 0.2 * batch.mean(out.logits)}

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        return {"mean": c.memory["mean"]}, {}

    def absorb(self, r: Round) -> Tree:
        return {"mean": r.state["mean"] + r.sum("mean")}


@dataclass(frozen=True)
class Mix(Strand):
    """Mixup: each sample with another one of its batch."""

    alpha: float = 0.4

    def draw(self, d: Draws) -> tuple[Arrays, Arrays]:
        partner = np.zeros((len(d.counts), d.width), dtype=np.int64)
        for t, count in enumerate(d.counts):
            partner[t, :count] = d.steps.permutation(count)
        return {"partner": partner, "share": d.steps.beta(self.alpha, self.alpha, len(d.counts))}, {}

    def batch(self, batch: Batch, c: Client) -> Batch:
        other, share = batch.draws["mix.partner"][: len(batch.mask)], batch.draws["mix.share"]
        mixed = {k: share * v + (1 - share) * v[other] for k, v in (("x", batch.x), ("y", batch.y))}
        return replace(batch, **mixed)


@dataclass(frozen=True)
class Focal(Strand):
    """Another task loss."""

    constraints = Constraints(claims=(TASK_LOSS,))

    gamma: float = 2.0

    def loss(self, out: Outputs, batch: Batch, c: Client) -> Tensor:
        log_p = (batch.y * out.logits.log_softmax(-1)).sum(-1)
        return batch.mean(-((1 - log_p.exp()) ** self.gamma) * log_p)


@dataclass(frozen=True)
class Calibrate(Strand):
    """Logits shifted by the client's label shares."""

    tau: float = 0.5

    def logits(self, logits: Tensor, batch: Batch, c: Client) -> Tensor:
        return logits + self.tau * ((c.label_counts + 1) / (c.size + len(c.label_counts))).log()


@dataclass(frozen=True)
class Halfway(Strand):
    """Upload the point halfway between the model received and the model trained."""

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        return {"model": (c.start + w) / 2}, {}


@dataclass(frozen=True)
class Sharp(Strand):
    """The gradient a step uphill: two evaluations."""

    rho: float = 0.05

    def grad(self, w: Tensor, c: Client, next: Gradient) -> Tensor:
        g = next(w)
        return next(w + self.rho * g / (g.norm() + 1e-12))


@dataclass(frozen=True)
class Average(Strand):
    """Hand out the mean of all global models so far."""

    def init_server(self, setup: Setup) -> Tree:
        return {"sum": torch.zeros_like(setup.w), "n": setup.w.new_zeros(())}

    def update(self, delta: Tensor, r: Round) -> tuple[Tensor, Tree]:
        return delta, {"sum": r.state["sum"] + r.w + delta, "n": r.state["n"] + 1}

    def deploy(self, w: Tensor, state: Tree, *_: Setup) -> Tensor:
        return state["sum"] / state["n"].clamp(min=1)


MADE_UP = (Teach, Anchor, Fair, Tracker, Mix, Focal, Calibrate, Halfway, Sharp, Average)
