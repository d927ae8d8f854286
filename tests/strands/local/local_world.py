"""What the tests of local losses share: definitions in NumPy, a tiny federation, and a plain loop to train it with."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from helpers import SIZES, advanced, federation, toy
from torch.nn.functional import cross_entropy, relu

from fedbraid.core import sampling
from fedbraid.core.batch import Batch
from fedbraid.core.outputs import Outputs
from fedbraid.core.plan import LocalWork, make_plan
from fedbraid.core.task import task_loss
from fedbraid.strands import parser as methods

FEATURES, HIDDEN, CLASSES, COHORT, ROUNDS, LR = 4, 6, 4, 4, 5, 0.2
WORK = {"batch": 4, "epochs": 2}
ENGINES = ["stack", "loop"]


# --- NumPy


def log_softmax(z: np.ndarray) -> np.ndarray:
    z = z - z.max()
    return z - np.log(np.exp(z).sum())


def kl(p: np.ndarray, q: np.ndarray) -> float:
    """KL between softmax(p) and softmax(q)."""
    p, q = log_softmax(p), log_softmax(q)
    return float(sum(np.exp(a) * (a - b) for a, b in zip(p, q, strict=True) if np.exp(a) > 0))


def slope(f: Any, at: np.ndarray, h: float = 1e-5) -> np.ndarray:
    """The gradient of the scalar f by central differences."""
    g = np.zeros_like(at)
    for i in np.ndindex(*at.shape):
        step = np.zeros_like(at)
        step[i] = h
        g[i] = (f(at + step) - f(at - step)) / (2 * h)
    return g


# --- one hook


def tensor(values: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values, dtype=float))


def one_hot(y: Any, classes: int = CLASSES) -> np.ndarray:
    return np.eye(classes)[np.asarray(y)]


def padded(values: np.ndarray, fill: float, pads: int = 2) -> torch.Tensor:
    return tensor(np.concatenate([values, np.full((pads, *values.shape[1:]), fill)]))


def a_client(y: np.ndarray, counts: Any, views: dict[str, tuple] | None = None, **more: Any) -> SimpleNamespace:
    """A client as one hook sees it; views are (logits, features) of the real samples."""
    seen = {name: Outputs(padded(z, 77.0), padded(f, -3.0)) for name, (z, f) in (views or {}).items()}
    return SimpleNamespace(label_counts=tensor(counts), size=tensor(np.sum(counts)), views=seen, lr=tensor(LR), **more)


def objective(strand: Any, logits: np.ndarray, features: np.ndarray, shares: np.ndarray, c: Any) -> tuple:
    """A strand's own term (or the task loss it changes) with its gradients; padding is there and must not count."""
    z, f = padded(logits, -55.0).requires_grad_(), padded(features, 9.0).requires_grad_()
    y = torch.cat([tensor(shares), tensor(np.eye(shares.shape[1])[[0, 1]])])
    batch = Batch(torch.zeros(len(y), 1), y, tensor([1] * len(shares) + [0, 0]))
    hooks = {name for name in ("loss", "logits") if name in type(strand).__dict__}
    with torch.enable_grad():
        if "loss" in hooks:
            value = strand.loss(Outputs(z, f), batch, c)
        else:
            value = task_loss("classification", strand.logits(z, batch, c), batch)
        gz, gf = torch.autograd.grad(value + 0 * (z.sum() + f.sum()), (z, f))
    real = len(shares)
    assert not gz[real:].any() and not gf[real:].any()
    return float(value.detach()), gz[:real].numpy(), gf[:real].numpy()


def over(parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Any:
    """`over_data` of a client whose data come as batches of (logits, features, labels), each padded; also counts."""

    def over_data(w: Any, f: Any, whole: bool = True) -> dict:
        total: dict = {}
        for z, features, y in parts if whole else parts[:1]:
            shares = torch.cat([tensor(one_hot(y, z.shape[1])), torch.ones(2, z.shape[1])])
            mask = tensor([1] * len(y) + [0, 0])
            part = f(Outputs(padded(z, 8.0), padded(features, 8.0)), Batch(shares[:, :1], shares, mask))
            total = {key: total.get(key, 0) + value for key, value in part.items()}
        return total

    return over_data


# --- a whole federation


def net(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and features of the network with one hidden layer."""
    a, b, c, d = torch.split(w, [FEATURES * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES])
    f = relu(x @ a.view(HIDDEN, FEATURES).T + b)
    return f @ c.view(CLASSES, HIDDEN).T + d, f


class World:
    """Six unequal clients, four of them in a round; several lack classes and one has a single sample."""

    def __init__(self, method: str = "fedavg", work: dict[str, Any] = WORK, rho: float = 0.0, cohort: int = COHORT):
        self.method, self.work, self.rho, self.clients = method, work, rho, cohort
        self.data = toy(classes=CLASSES)
        self.chain = methods.parse(method)
        self.sizes = np.array(SIZES, dtype=float)
        dataset, partition = self.data
        self.x = [torch.as_tensor(dataset.train.x[p]) for p in partition.clients]
        self.y = [torch.as_tensor(dataset.train.y[p]) for p in partition.clients]
        self.counts = [torch.bincount(y, minlength=CLASSES).double() for y in self.y]
        self.start = _start()

    def built(self, kind: str = "stack", method: str | None = None, rounds: int = ROUNDS, **settings: Any) -> Any:
        return federation(
            method or self.method,
            data=self.data,
            model={"name": "mlp", "hidden": [HIDDEN]},
            local=self.work,
            rounds=rounds,
            sampling={"clients": self.clients},
            engine={"kind": kind},
            **{"optimizer": {"lr": LR, "momentum": self.rho}, **settings},
        )

    def trained(self, kind: str = "stack", method: str | None = None, **settings: Any) -> Any:
        return advanced(self.built(kind, method, **settings))

    def cohort(self, t: int) -> list[int]:
        return [int(k) for k in sampling.fixed(len(SIZES), self.clients, seed=0, round=t)]

    def plan(self, t: int, k: int) -> Any:
        known = SimpleNamespace(width=HIDDEN)  # of the federation, what is drawn here depends on
        return make_plan(self.chain, LocalWork(**self.work), SIZES[k], 4, seed=0, round=t, client=k, setup=known)

    def local(self, t: int, k: int, w: torch.Tensor, loss: Any, *, grad: Any = None, epoch: Any = None) -> torch.Tensor:
        """Client k's model after round t of SGD on `loss(w, x, y, draws)`; `epoch(w)` comes before each local epoch."""
        plan, v = self.plan(t, k), 0 * w
        for s in range(len(plan)):
            if plan.first[s] and epoch:
                epoch(w)
            at, drawn = plan.positions[s, : plan.counts[s]], {key: d[s] for key, d in plan.draws.items()}
            x, y = self.x[k][at], self.y[k][at]
            g = (grad or slope_of)(lambda m, x=x, y=y, drawn=drawn: loss(m, x, y, drawn), w)
            v = self.rho * v + g
            w = w - LR * v
        return w

    def mean(self, models: list[torch.Tensor], weights: Any) -> torch.Tensor:
        shares = torch.as_tensor(np.asarray(weights, dtype=float))
        return (shares / shares.sum()) @ torch.stack(models)

    def federated(self, loss_of: Any, **local: Any) -> torch.Tensor:
        """FedAvg on the losses `loss_of(k, w)`, the model that client k received being w."""
        w = self.start
        for t in range(ROUNDS):
            cohort = self.cohort(t)
            w = self.mean([self.local(t, k, w, loss_of(k, w), **local) for k in cohort], self.sizes[cohort])
        return w


@cache
def _start() -> torch.Tensor:
    """The model that every federation here begins with."""
    return federation(data=toy(classes=CLASSES), model={"name": "mlp", "hidden": [HIDDEN]}).server.w


def slope_of(f: Any, w: torch.Tensor) -> torch.Tensor:
    w = w.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(f(w), w)[0]


def ce(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cross_entropy(net(w, x)[0], y)


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max())
