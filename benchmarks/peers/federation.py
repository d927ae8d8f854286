"""A federation as a file: the data, who holds what, who takes part in each round, and the model all start from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from peers.networks import network


@dataclass(frozen=True, eq=False)
class Federation:
    """Client k holds the samples ends[k-1]..ends[k]; cohorts[n] takes part in round n."""

    model: str
    classes: int
    batch: int
    epochs: int
    lr: float
    x: Tensor
    y: Tensor
    ends: np.ndarray  # [clients]
    cohorts: np.ndarray  # [rounds, clients of a round]
    start: tuple[Tensor, ...]  # the model's parameters, in order

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    @property
    def clients(self) -> range:
        return range(len(self.ends))

    def size(self, client: int) -> int:
        return int(self.ends[client]) - self.first(client)

    def first(self, client: int) -> int:
        return int(self.ends[client - 1]) if client else 0

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        """What a client holds: views, no copies."""
        here = slice(self.first(client), int(self.ends[client]))
        return self.x[here], self.y[here]

    def batches(self, client: int) -> list[tuple[Tensor, Tensor]]:
        """The client's samples in the order they lie, batch by batch: views, no copies."""
        x, y = self.samples(client)
        return list(zip(x.split(self.batch), y.split(self.batch), strict=True))

    def cohort(self, number: int) -> list[int]:
        return [int(client) for client in self.cohorts[number]]

    def samples_of(self, number: int) -> int:
        """How many samples go through the network in a round, each epoch counted."""
        return self.epochs * sum(self.size(client) for client in self.cohort(number))

    def network(self) -> nn.Module:
        """The network in plain torch, on the device of the data, with the parameters all start from."""
        module = network(self.model, self.shape, self.classes).to(self.x.device)
        fill(module.parameters(), self.start)
        return module


@dataclass(frozen=True, eq=False)
class Batches:
    """A client's batches anew in every epoch, gathered by index: cheaper than a DataLoader."""

    x: Tensor
    y: Tensor
    batch: int
    in_order: bool

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.arange(len(self.y)) if self.in_order else torch.randperm(len(self.y))
        for index in order.split(self.batch):
            yield self.x[index], self.y[index]


SCALARS = ("model", "classes", "batch", "epochs", "lr")


def save(federation: Federation, path: Path) -> None:
    arrays = {name: getattr(federation, name) for name in (*SCALARS, "ends", "cohorts")}
    arrays |= {"x": federation.x.numpy(), "y": federation.y.numpy()}
    arrays |= {f"start.{k}": tensor.numpy() for k, tensor in enumerate(federation.start)}
    np.savez(path, **arrays)


def load(path: Path, device: str = "cpu") -> Federation:
    with np.load(path) as file:
        scalars = {name: file[name].item() for name in SCALARS}
        x, y = (torch.from_numpy(file[name]).to(device) for name in ("x", "y"))
        start = tuple(torch.from_numpy(file[f"start.{k}"]) for k in range(sum(n.startswith("start.") for n in file)))
        return Federation(**scalars, x=x, y=y, ends=file["ends"], cohorts=file["cohorts"], start=start)


@torch.no_grad()
def fill(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)
