"""Strands of one's own as they were written for version 0.1. They stay as they are: a later version must run them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

import fedbraid as fb


@dataclass(frozen=True)
class Teach(fb.Strand):
    """Stay near the logits of the received model and near the features of one's own previous model."""

    lam: float = 0.7
    mu: float = 0.3

    def init_client(self, setup: fb.Setup):
        return {"w": setup.w, "b": setup.buffers}

    def views(self, c: fb.Client):
        return {"received": (c.start, c.buffers), "previous": (c.kept["w"], c.kept["b"])}

    def loss(self, out: fb.Outputs, batch: fb.Batch, c: fb.Client) -> Tensor:
        logits = (out.logits - c.views["received"].logits).square().sum(-1)
        features = (out.features - c.views["previous"].features).square().sum(-1)
        return self.lam * batch.mean(logits) + self.mu * batch.mean(features)

    def end(self, w: Tensor, c: fb.Client):
        return {}, {"w": w, "b": c.buffers}


@dataclass(frozen=True)
class Anchor(fb.Strand):
    """Pull features to their class's mean under the model at the beginning of each local epoch."""

    every_epoch = True
    lam: float = 0.5

    def begin(self, w: Tensor, c: fb.Client):
        sums = c.over_data(w, lambda out, batch: {"f": (batch.y * batch.mask[:, None]).mT @ out.features})
        calls = c.memory["calls"] + 1 if c.memory else torch.ones_like(c.size)
        return {"means": sums["f"] / c.label_counts.clamp(min=1)[:, None], "calls": calls}

    def loss(self, out: fb.Outputs, batch: fb.Batch, c: fb.Client) -> Tensor:
        return self.lam * batch.mean((out.features - batch.y @ c.memory["means"]).square().sum(-1))

    def end(self, w: Tensor, c: fb.Client):
        return dict(c.memory), {}


@dataclass(frozen=True)
class Fair(fb.Strand):
    """Ask every client for its loss first; tell each how its own compares with the mean."""

    def asks(self, r: fb.Round) -> bool:
        return True

    def probe(self, c: fb.Client):
        def losses(out: fb.Outputs, batch: fb.Batch):
            return {"loss": -(batch.y * out.logits.log_softmax(-1) * batch.mask[:, None]).sum()}

        return {"loss": c.over_data(c.start, losses)["loss"] / c.size}

    def probed(self, r: fb.Round) -> fb.PerClient:
        loss = r.each("loss")
        return fb.PerClient(factor=loss / loss.mean())

    def grad(self, w: Tensor, c: fb.Client, next) -> Tensor:
        return c.received["factor"] * next(w)


@dataclass(frozen=True)
class Tracker(fb.Strand):
    """Remember a running mean of the logits, and hand it in."""

    def init_server(self, setup: fb.Setup):
        return {"mean": torch.zeros(setup.classes, dtype=setup.w.dtype, device=setup.w.device)}

    def send(self, r: fb.Round):
        return {"mean": r.kept["mean"]}

    def begin(self, w: Tensor, c: fb.Client):
        return {"mean": torch.zeros_like(c.label_counts)}

    def step(self, w: Tensor, out: fb.Outputs, batch: fb.Batch, c: fb.Client):
        return {"mean": 0.8 * c.memory["mean"] + 0.2 * batch.mean(out.logits)}

    def loss(self, out: fb.Outputs, batch: fb.Batch, c: fb.Client) -> Tensor:
        return 0.1 * (batch.mean(out.logits) - c.received["mean"]).square().sum()

    def end(self, w: Tensor, c: fb.Client):
        return {"mean": c.memory["mean"]}, {}

    def absorb(self, r: fb.Round):
        return {"mean": r.kept["mean"] + r.sum("mean")}


@dataclass(frozen=True)
class Mix(fb.Strand):
    """Mixup: each sample with another one of its batch; the client's own shift is drawn once."""

    alpha: float = 0.4

    def draw(self, rng: np.random.Generator, counts: np.ndarray, width: int) -> dict[str, np.ndarray]:
        partner = np.zeros((len(counts), width), dtype=np.int64)
        for t, count in enumerate(counts):
            partner[t, :count] = rng.permutation(count)
        return {"partner": partner, "share": rng.beta(self.alpha, self.alpha, len(counts))}

    def draw_once(self, rng: np.random.Generator, setup: fb.Setup) -> dict[str, np.ndarray]:
        return {"shift": 0.1 * rng.normal(size=setup.classes)}

    def batch(self, batch: fb.Batch, c: fb.Client) -> fb.Batch:
        other, share = batch.draws["mix.partner"][: len(batch.mask)], batch.draws["mix.share"]
        mixed = {k: share * v + (1 - share) * v[other] for k, v in (("x", batch.x), ("y", batch.y))}
        return replace(batch, **mixed)

    def logits(self, logits: Tensor, batch: fb.Batch, c: fb.Client) -> Tensor:
        return logits + c.chance["shift"].to(logits)


@dataclass(frozen=True)
class Focal(fb.Strand):
    """Another task loss."""

    gamma: float = 2.0

    def task(self, logits: Tensor, batch: fb.Batch, c: fb.Client) -> Tensor:
        log_p = (batch.y * logits.log_softmax(-1)).sum(-1)
        return batch.mean(-((1 - log_p.exp()) ** self.gamma) * log_p)


@dataclass(frozen=True)
class Calibrate(fb.Strand):
    """Logits shifted by the client's label shares; each client is tested with a network of its own."""

    needs = frozenset({"labels"})
    tau: float = 0.5

    def logits(self, logits: Tensor, batch: fb.Batch, c: fb.Client) -> Tensor:
        return logits + self.tau * ((c.label_counts + 1) / (c.size + len(c.label_counts))).log()

    def init_client(self, setup: fb.Setup):
        return {"w": setup.w}

    def end(self, w: Tensor, c: fb.Client):
        return {}, {"w": w}

    def personalise(self, w: Tensor, kept, setup: fb.Setup) -> Tensor:
        return (w + kept["w"]) / 2


@dataclass(frozen=True)
class Halfway(fb.Strand):
    """Upload the point halfway between the model received and the model trained; only sums of it are used."""

    sum_only = frozenset({"drift"})
    claims = ("upload a point that was not trained",)

    def init_server(self, setup: fb.Setup):
        return {"drift": torch.zeros_like(setup.w)}

    def end(self, w: Tensor, c: fb.Client):
        return {"model": (c.start + w) / 2, "drift": w - c.start}, {}

    def absorb(self, r: fb.Round):
        return {"drift": r.kept["drift"] + r.sum("drift")}


@dataclass(frozen=True)
class Sharp(fb.Strand):
    """The gradient a step uphill: two evaluations."""

    last_in = frozenset({"grad"})
    rho: float = 0.05

    def grad(self, w: Tensor, c: fb.Client, next) -> Tensor:
        g = next(w)
        return next(w + self.rho * g / (g.norm() + 1e-12))


@dataclass(frozen=True)
class Average(fb.Strand):
    """Hand out the mean of all global models so far."""

    def init_server(self, setup: fb.Setup):
        return {"sum": torch.zeros_like(setup.w), "n": setup.w.new_zeros(())}

    def update(self, delta: Tensor, r: fb.Round):
        return delta, {"sum": r.kept["sum"] + r.w + delta, "n": r.kept["n"] + 1}

    def deploy(self, w: Tensor, kept, setup: fb.Setup) -> Tensor:
        return kept["sum"] / kept["n"].clamp(min=1)


@dataclass(frozen=True)
class Weighty(fb.Strand):
    """Weights by the square root of the size, evened out, and a step that is a little larger."""

    def weigh(self, n: Tensor, r: fb.Round) -> Tensor:
        return n.sqrt() / n.sqrt().sum()

    def reweigh(self, shares: Tensor, r: fb.Round) -> Tensor:
        even = shares + 0.1
        return even / even.sum()

    def rescale(self, weights: Tensor, r: fb.Round) -> Tensor:
        return 1.1 * weights


OWN = (Teach, Anchor, Fair, Tracker, Mix, Focal, Calibrate, Halfway, Sharp, Average, Weighty)
