"""What the papers' algorithms are written on once more: a small network, unequal clients and plain SGD, by autograd.

Who takes part and which samples come when are data, so they are asked of the library; everything else is done here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from helpers import advanced, federation
from torch import Tensor

from fedbraid.core import sampling
from fedbraid.core.chain import Chain
from fedbraid.core.plan import LocalWork, Plan, make_plan
from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.training.simulation import Simulation

ROUNDS, COHORT, LR, FEATURES, HIDDEN, CLASSES = 5, 3, 0.2, 3, 5, 4
LABELS = ([0] * 7 + [1] * 3, [2], [0, 1, 2] * 4 + [1, 2], [3, 3, 3, 3, 0, 0], [1, 1, 1, 1, 1, 1, 2, 2])
"""Five clients; one has a single sample, and one class lies with one client alone."""
SIZES = tuple(map(len, LABELS))
N = len(SIZES)

Net = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def data() -> tuple[Dataset, Partition]:
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(CLASSES, FEATURES))
    y = np.concatenate(LABELS)
    x = centres[y] + rng.normal(size=(len(y), FEATURES))
    split, test = Split(x, y), Split(x[:10], y[:10])
    ends = np.cumsum(SIZES)
    return Dataset("five", split, test, CLASSES), Partition(
        tuple(np.arange(end - n, end) for n, end in zip(SIZES, ends, strict=True))
    )


def mlp(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and features of the network whose parameters lie in `w` one after another."""
    a, b, c, d = torch.split(w, [HIDDEN * FEATURES, HIDDEN, CLASSES * HIDDEN, CLASSES])
    f = F.relu(x @ a.view(HIDDEN, FEATURES).T + b)
    return f @ c.view(CLASSES, HIDDEN).T + d, f


class World:
    """Three of the five clients take part in a round."""

    def __init__(
        self, *, work: dict[str, Any] | None = None, optimizer: dict[str, Any] | None = None, net: Net = mlp
    ) -> None:
        self.work = work or {"batch": 4, "epochs": 2}
        self.optimizer = {"lr": LR} | (optimizer or {})
        self.rho = self.optimizer.get("momentum", 0.0)
        self.data, self.net = data(), net
        self.sizes = torch.tensor(SIZES, dtype=torch.float64)

    def federation(self, method: str, kind: str = "loop", **settings: Any) -> Simulation:
        return federation(
            method,
            data=self.data,
            model={"name": "mlp", "hidden": [HIDDEN]},
            local=self.work,
            sampling={"clients": COHORT},
            optimizer=self.optimizer,
            engine={"kind": kind},
            **{"rounds": ROUNDS, "evaluate": {"every": 99}} | settings,
        )

    def trained(self, method: str, kind: str = "loop", **settings: Any) -> Simulation:
        return advanced(self.federation(method, kind, **settings))

    @property
    def start(self) -> Tensor:
        return self.federation("fedavg").server.w

    def lr(self, t: int) -> float:
        return self.optimizer["lr"] * self.optimizer.get("decay", 1.0) ** t

    def cohort(self, t: int) -> list[int]:
        return [int(k) for k in sampling.fixed(N, COHORT, seed=0, round=t)]

    def of(self, k: int) -> tuple[Tensor, Tensor]:
        at = self.data[1].clients[k]
        return torch.as_tensor(self.data[0].train.x[at]), torch.as_tensor(self.data[0].train.y[at])

    def plan(self, t: int, k: int) -> Plan:
        return make_plan(Chain(), LocalWork(**self.work), SIZES[k], max(SIZES), seed=0, round=t, client=k)

    def loss(self, w: Tensor, k: int, at: Any = slice(None)) -> Tensor:
        x, y = self.of(k)
        return F.cross_entropy(self.net(w, x[at])[0], y[at])

    def slope(self, w: Tensor, k: int, at: Any = slice(None)) -> Tensor:
        w = w.detach().requires_grad_()
        (g,) = torch.autograd.grad(self.loss(w, k, at), w)
        return g

    def local(
        self, t: int, k: int, start: Tensor, correct: Callable[[Tensor], Any] = lambda w: 0.0, ascent: float = 0.0
    ) -> Tensor:
        """Client k's model after round t: SGD on g + correct(w), g taken `ascent` up the slope."""
        plan, w, v, o = self.plan(t, k), start, torch.zeros_like(start), self.optimizer
        for row, count in zip(plan.positions, plan.counts, strict=True):
            at = torch.as_tensor(row[:count])
            g = self.slope(w, k, at)
            if ascent:
                g = self.slope(w + ascent * g / g.norm(), k, at)
            g = g + correct(w) + o.get("weight_decay", 0.0) * w
            v = self.rho * v + g
            w = w - self.lr(t) * (g + self.rho * v if o.get("nesterov") else v)
        return w

    def reach(self, t: int, k: int, mu: float = 0.0) -> float:
        """How far client k's solver goes in round t under a gradient of 1, in units of the learning rate."""
        y = v = 0.0
        for _ in range(len(self.plan(t, k))):
            g = 1 + mu * y
            v = self.rho * v + g
            y -= self.lr(t) * (g + self.rho * v if self.optimizer.get("nesterov") else v)
        return -y / self.lr(t)


def far(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max())
