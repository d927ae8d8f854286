"""Federated softmax regression in NumPy: what the strands' own loops are made of.

Who takes part and which samples come when are data, so they are asked of the library; everything else is done here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers import SIZES, advanced, federation, toy

from fedbraid.core import sampling
from fedbraid.core.chain import Chain
from fedbraid.core.plan import LocalWork, Plan, make_plan

FEATURES, CLASSES, COHORT, ROUNDS, LR = 4, 3, 4, 5, 0.3
WORK = {"batch": 4, "epochs": 2}


class World:
    """Six unequal clients of whom four take part in a round."""

    def __init__(self, work: dict[str, Any] = WORK) -> None:
        self.data = toy()
        self.work = work
        self.sizes = np.array(SIZES, dtype=float)
        self.start = federation(**self._settings()).server.w.numpy()

    def trained(self, method: str, optimizer: dict[str, Any] | None = None, **settings: Any) -> Any:
        return advanced(federation(method, **self._settings(optimizer or {}), **settings))

    def _settings(self, optimizer: dict[str, Any] | None = None) -> dict[str, Any]:
        return {
            "data": self.data,
            "model": {"name": "logistic"},
            "local": self.work,
            "rounds": ROUNDS,
            "sampling": {"clients": COHORT},
            "optimizer": {"lr": LR, **(optimizer or {})},
        }

    def cohort(self, t: int) -> list[int]:
        return [int(k) for k in sampling.fixed(len(SIZES), COHORT, seed=0, round=t)]

    def of(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        dataset, partition = self.data
        return dataset.train.x[partition.clients[k]], dataset.train.y[partition.clients[k]]

    def labels(self, k: int) -> np.ndarray:
        return np.bincount(self.of(k)[1], minlength=CLASSES)

    def plan(self, t: int, k: int) -> Plan:
        return make_plan(Chain(), LocalWork(**self.work), SIZES[k], max(SIZES), seed=0, round=t, client=k)

    def local(
        self,
        t: int,
        k: int,
        w: np.ndarray,
        *,
        lr: float = LR,
        rho: float = 0.0,
        nesterov: bool = False,
        correct: Any = 0,
    ) -> np.ndarray:
        """Client k's model after round t. `correct(w)` is added to each gradient."""
        (x, y), plan, v = self.of(k), self.plan(t, k), np.zeros_like(w)
        for row, count in zip(plan.positions, plan.counts, strict=True):
            at = row[:count]
            g = gradient(w, x[at], y[at]) + (correct(w) if callable(correct) else correct)
            v = rho * v + g
            w = w - lr * (g + rho * v if nesterov else v)
        return w


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the mean cross-entropy at w = (weights [classes, features], biases [classes])."""
    weight, bias = w[: FEATURES * CLASSES].reshape(CLASSES, FEATURES), w[FEATURES * CLASSES :]
    z = np.exp(x @ weight.T + bias)
    p = z / z.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    return np.concatenate([(p.T @ x).ravel(), p.sum(0)])


def far(tensor: Any, array: np.ndarray) -> float:
    assert tensor.shape == array.shape
    return float(np.abs(tensor.numpy() - array).max())
