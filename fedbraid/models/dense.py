"""Networks of fully connected layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import Tensor, nn
from torch.nn.functional import relu

from fedbraid.config.registry import whole
from fedbraid.core.outputs import Outputs
from fedbraid.errors import UserError
from fedbraid.models.projection import projection_head
from fedbraid.models.takes import Shape

WIDEST = 10**6
"""Outputs of a layer: more than any network here has, and few enough for torch to count a layer's bytes."""


def width(name: str, value: object) -> int:
    """Return the number of a layer's outputs."""
    number = whole(name, value)
    if number > WIDEST:
        raise UserError(f"{name} must be at most {WIDEST:,}, not {value!r}")
    return number


def logistic(shape: Shape, classes: int) -> nn.Module:
    return Dense(shape, classes, ())


def mlp(shape: Shape, classes: int, hidden: Sequence[int] = (64,), projection: int = 0) -> nn.Module:
    if not isinstance(hidden, Sequence) or isinstance(hidden, str) or not hidden:
        raise UserError(f"hidden must be a list of layer widths such as [64], not {hidden!r}")
    return Dense(shape, classes, tuple(width("each width in hidden", each) for each in hidden), projection)


class Dense(nn.Module):
    """Fully connected layers with ReLU between them; with none hidden it is logistic regression."""

    def __init__(self, shape: Shape, classes: int, hidden: tuple[int, ...], projection: int = 0) -> None:
        super().__init__()
        widths = (prod(shape), *hidden)
        self.hidden = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        self.project = projection_head(widths[-1], projection)
        self.head = nn.Linear(projection or widths[-1], classes)

    def forward(self, x: Tensor) -> Outputs:
        x = x.flatten(1)
        for layer in self.hidden:
            x = relu(layer(x))
        x = self.project(x)
        return Outputs(self.head(x), x)


class Perceptron(nn.Module):
    """One layer with a sigmoid, whose outputs are the logits: LEAF's network for SYNTHETIC.

    "A perceptron with sigmoid activations", say LEAF's and FedSkip's papers; in LEAF's code the softmax stands on
    σ(W x + b). So logits lie between 0 and 1, and of C classes none is ever given more than e / (e + C - 1): 0.40 of
    five. FedSkip's released network has no sigmoid: `sigmoid=False` is logistic regression.
    """

    def __init__(self, shape: Shape, classes: int, sigmoid: bool | None = None) -> None:
        super().__init__()
        if not isinstance(sigmoid, bool | None):
            raise UserError(f"sigmoid must be true or false, not {sigmoid!r}")
        self.head = (nn.Linear if sigmoid is False else SigmoidLayer)(prod(shape), classes)

    def forward(self, x: Tensor) -> Outputs:
        x = x.flatten(1)
        return Outputs(self.head(x), x)


class SigmoidLayer(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sigmoid()
