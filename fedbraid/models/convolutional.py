"""Plain convolutional networks: convolutions that are pooled, then fully connected layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, pairwise

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from fedbraid.core.outputs import Outputs
from fedbraid.errors import UserError
from fedbraid.models.projection import projection_head
from fedbraid.models.takes import Shape


@dataclass(frozen=True)
class ConvPlan:
    """The sizes of a network: channels of its convolutions, then widths of its hidden layers."""

    channels: tuple[int, ...]
    kernel: int
    padding: int
    widths: tuple[int, ...]
    groups: int = 0  # of a GroupNorm after each convolution; 0 = none

    def shrunk(self, side: int) -> int:
        """Return the length that a side has after all convolutions and poolings."""
        for _ in self.channels:
            side = (side + 2 * self.padding - self.kernel + 1) // 2
        return side

    @property
    def smallest_side(self) -> int:
        """The least side that leaves a pixel."""
        return next(side for side in count(1) if self.shrunk(side) >= 1)


LENET = ConvPlan((6, 16), kernel=5, padding=0, widths=(120, 84))
CNN = ConvPlan((64, 64), kernel=5, padding=0, widths=(384, 192))
FEDAVG_CNN = ConvPlan((32, 64), kernel=5, padding=2, widths=(512,))
TINY_CNN = ConvPlan((64, 64, 64), kernel=3, padding=1, widths=(512, 384), groups=4)


def lenet(shape: Shape, classes: int, projection: int = 0) -> nn.Module:
    return Convolutional(shape, classes, LENET, projection)


def cnn(shape: Shape, classes: int, projection: int = 0, head_bias: bool | None = None) -> nn.Module:
    """Return FedDyn's network. FedNH's code has it without a bias in the last layer: `head_bias=False`."""
    if not isinstance(head_bias, bool | None):
        raise UserError(f"head_bias must be true or false, not {head_bias!r}")
    return Convolutional(shape, classes, CNN, projection, head_bias is not False)


def fedavg_cnn(shape: Shape, classes: int, projection: int = 0) -> nn.Module:
    return Convolutional(shape, classes, FEDAVG_CNN, projection)


def tiny_cnn(shape: Shape, classes: int, projection: int = 0) -> nn.Module:
    return Convolutional(shape, classes, TINY_CNN, projection)


class PooledConv2d(nn.Conv2d):
    """A convolution, 2x2 max pooling and ReLU: one layer, since engines can run the three in one go.

    ReLU is monotone, so pooling first gives the papers' outputs and gradients with a quarter of the ReLUs.
    """

    def forward(self, x: Tensor) -> Tensor:
        return relu(max_pool2d(super().forward(x), 2))


def convolved(plan: ConvPlan, channels: int, out: int) -> nn.Module:
    if not plan.groups:
        return PooledConv2d(channels, out, plan.kernel, padding=plan.padding)
    conv = nn.Conv2d(channels, out, plan.kernel, padding=plan.padding)
    return nn.Sequential(conv, nn.GroupNorm(plan.groups, out), nn.MaxPool2d(2), nn.ReLU())


class Convolutional(nn.Module):
    """Convolutions, each halved by pooling, then fully connected layers; ReLU after each."""

    def __init__(self, shape: Shape, classes: int, plan: ConvPlan, projection: int = 0, bias: bool = True) -> None:
        super().__init__()
        colours, height, width = shape
        self.convs = nn.Sequential(*(convolved(plan, i, o) for i, o in pairwise((colours, *plan.channels))))
        pixels = plan.shrunk(height) * plan.shrunk(width)
        widths = (plan.channels[-1] * pixels, *plan.widths)
        self.hidden = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        self.project = projection_head(widths[-1], projection)
        self.head = nn.Linear(projection or widths[-1], classes, bias=bias)

    def forward(self, x: Tensor) -> Outputs:
        x = self.convs(x).flatten(1)
        for layer in self.hidden:
            x = relu(layer(x))
        x = self.project(x)
        return Outputs(self.head(x), x)
