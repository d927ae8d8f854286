"""Problems whose local training is known in closed form, recorded as runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedbraid as fb
from fedbraid.core.outputs import Outputs
from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.training.user_objects import UserObjects

EXACT = {"device": "cpu", "dtype": "float64", "kind": "stack"}


class Point(nn.Module):
    """A regression on unit vectors: the model is a point, and logits are its coordinates."""

    def __init__(self, start: Sequence[float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x: Tensor) -> Outputs:
        return Outputs((x @ self.w)[:, None], x)


class Prior(nn.Module):
    """Logits that are the same for every input: a client learns how often it sees each class, and nothing else."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(classes, dtype=torch.float64))

    def forward(self, x: Tensor) -> Outputs:
        return Outputs(self.b.expand(len(x), -1) + 0 * x.sum(1, keepdim=True), x)


def targets(*points: Sequence[float]) -> tuple[Dataset, Partition]:
    """Client k wants to be at points[k]: its loss is ½ ‖w − a_k‖² / d, one sample for each of d coordinates."""
    a = np.array(points, dtype=np.float64)
    clients, d = a.shape
    data = Split(np.tile(np.eye(d), (clients, 1)), a.ravel())
    return Dataset("targets", data, data, 1, "regression"), Partition(tuple(np.arange(a.size).reshape(clients, d)))


def labels(*clients: Sequence[int], classes: int = 2) -> tuple[Dataset, Partition]:
    """Clients with these labels, and a test set with one sample of each class; inputs tell nothing."""
    y = np.concatenate([np.array(own) for own in clients])
    ends = np.cumsum([len(own) for own in clients])[:-1]
    data = Dataset("labels", Split(np.ones((len(y), 1)), y), Split(np.ones((classes, 1)), np.arange(classes)), classes)
    return data, Partition(tuple(np.split(np.arange(len(y)), ends)))


def record(
    place: Path, problem: tuple[Dataset, Partition], module: nn.Module, method: str = "fedavg", **settings: Any
) -> UserObjects:
    """Record a run with one local step on all of a client's samples; what an analysis of it must be given."""
    usual = {"rounds": 1, "local": {"batch": 0, "steps": 1}, "optimizer": {"lr": 0.5}, "engine": EXACT}
    data, partition = problem
    fb.run(method, out=place, data=data, partition=partition, model=module, **usual | settings)
    return UserObjects(data, partition, module)
