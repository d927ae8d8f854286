"""The networks in plain torch, for the contenders that do not know FedBraid.

Parameters come in the order of FedBraid's networks. Pooling goes before ReLU, which gives the same numbers with a
quarter of the ReLUs: what FedBraid does, the others get as well.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu


def network(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    if name == "logistic":
        return nn.Linear(prod(shape), classes)
    if name == "lenet":
        return nn.Sequential(*pooled(shape[0], 6), *pooled(6, 16), nn.Flatten(), *dense(256, 120, 84, classes))
    if name == "cnn":
        return nn.Sequential(*pooled(shape[0], 64), *pooled(64, 64), nn.Flatten(), *dense(1600, 384, 192, classes))
    if name == "two-convolutions":
        return TwoConvolutions(shape, classes)
    raise ValueError(f"no network {name!r}")


class TwoConvolutions(nn.Module):
    """The network of pfl-research's CIFAR-10 benchmark, without its dropout, which would draw different numbers
    everywhere: convolutions of 32 and 64 channels, pooling after the second alone, a layer of 128."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(shape[0], 32, 3)
        self.second = nn.Conv2d(32, 64, 3)
        self.hidden = nn.Linear(64 * (shape[1] // 2 - 2) * (shape[2] // 2 - 2), 128)
        self.head = nn.Linear(128, classes)

    def features(self, x: Tensor) -> Tensor:
        x = self.second(relu(self.first(x)))
        return relu(self.hidden(relu(max_pool2d(x, 2)).flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def pooled(channels: int, out: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, out, 5), nn.MaxPool2d(2), nn.ReLU()]


def dense(*widths: int) -> list[nn.Module]:
    layers = [layer for i, o in pairwise(widths) for layer in (nn.Linear(i, o), nn.ReLU())]
    return layers[:-1]
