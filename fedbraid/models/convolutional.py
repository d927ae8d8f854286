"""Plain convolutional networks: convolutions that are pooled, then fully connected layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, pairwise

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from fedbraid.models.outputs import Outputs
from fedbraid.models.projection import projection_head
from fedbraid.models.takes import Shape


@dataclass(frozen=True)
class Plan:
    """The sizes of a network: channels of its convolutions, then widths of its hidden layers."""

    channels: tuple[int, ...]
    kernel: int
    padding: int
    widths: tuple[int, ...]
    groups: int = 0  # of a GroupNorm after each convolution; 0 = none

    def shrunk(self, side: int) -> int:
        """What all convolutions and poolings leave of a side."""
        for _ in self.channels:
            side = (side + 2 * self.padding - self.kernel + 1) // 2
        return side

    @property
    def smallest_side(self) -> int:
        """The least side that leaves a pixel."""
        return next(side for side in count(1) if self.shrunk(side) >= 1)


LENET = Plan((6, 16), kernel=5, padding=0, widths=(120, 84))
CNN = Plan((64, 64), kernel=5, padding=0, widths=(384, 192))
FEDAVG_CNN = Plan((32, 64), kernel=5, padding=2, widths=(512,))
TINY_CNN = Plan((64, 64, 64), kernel=3, padding=1, widths=(512, 384), groups=4)


def lenet(shape: Shape, classes: int, projection: int = 0) -> nn.Module:
    return Convolutional(shape, classes, LENET, projection)


def cnn(shape: Shape, classes: int, projection: int = 0) -> nn.Module:
    return Convolutional(shape, classes, CNN, projection)


def fedavg_cnn(shape: Shape, classes: int, projection: int = 0) -> nn.Module:
    return Convolutional(shape, classes, FEDAVG_CNN, projection)


def tiny_cnn(shape: Shape, classes: int, projection: int = 0) -> nn.Module:
    return Convolutional(shape, classes, TINY_CNN, projection)


class Convolutional(nn.Module):
    """Convolutions, each halved by pooling, then fully connected layers; ReLU after each."""

    def __init__(self, shape: Shape, classes: int, plan: Plan, projection: int = 0) -> None:
        super().__init__()
        colours, height, width = shape
        self.convs = nn.ModuleList(
            nn.Conv2d(i, o, plan.kernel, padding=plan.padding) for i, o in pairwise((colours, *plan.channels))
        )
        self.norms = nn.ModuleList(
            nn.GroupNorm(plan.groups, channels) if plan.groups else nn.Identity() for channels in plan.channels
        )
        pixels = plan.shrunk(height) * plan.shrunk(width)
        widths = (plan.channels[-1] * pixels, *plan.widths)
        self.hidden = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        self.project = projection_head(widths[-1], projection)
        self.head = nn.Linear(projection or widths[-1], classes)

    def forward(self, x: Tensor) -> Outputs:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            # ReLU is monotone, so pooling first gives the papers' outputs and gradients with a quarter of the ReLUs.
            x = relu(max_pool2d(norm(conv(x)), 2))
        x = x.flatten(1)
        for layer in self.hidden:
            x = relu(layer(x))
        x = self.project(x)
        return Outputs(self.head(x), x)
