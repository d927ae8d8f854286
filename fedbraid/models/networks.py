"""The networks. Each one's last layer is called `head`; what `head` receives are the features.

They hold no dropout and no batch statistics, and `forward` never branches on data, so clients can be stacked.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from fedbraid.models.outputs import Outputs

Shape = tuple[int, ...]


class Dense(nn.Module):
    """Fully connected layers with ReLU between them; with none hidden it is logistic regression."""

    def __init__(self, shape: Shape, classes: int, hidden: tuple[int, ...], projection: int = 0) -> None:
        super().__init__()
        widths = (prod(shape), *hidden)
        self.hidden = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        self.project = _projection(widths[-1], projection)
        self.head = nn.Linear(projection or widths[-1], classes)

    def forward(self, x: Tensor) -> Outputs:
        x = x.flatten(1)
        for layer in self.hidden:
            x = relu(layer(x))
        x = self.project(x)
        return Outputs(self.head(x), x)


class Convolutional(nn.Module):
    """Two 5x5 convolutions without padding, each halved by pooling, then two fully connected layers."""

    def __init__(
        self, shape: Shape, classes: int, channels: tuple[int, int], widths: tuple[int, int], projection: int = 0
    ) -> None:
        super().__init__()
        colours, height, width = shape
        self.conv1 = nn.Conv2d(colours, channels[0], 5)
        self.conv2 = nn.Conv2d(channels[0], channels[1], 5)
        self.fc1 = nn.Linear(channels[1] * _shrunk(height) * _shrunk(width), widths[0])
        self.fc2 = nn.Linear(widths[0], widths[1])
        self.project = _projection(widths[1], projection)
        self.head = nn.Linear(projection or widths[1], classes)

    def forward(self, x: Tensor) -> Outputs:
        # ReLU is monotone, so pooling first gives the papers' outputs and gradients with a quarter of the ReLUs.
        x = relu(max_pool2d(self.conv1(x), 2))
        x = relu(max_pool2d(self.conv2(x), 2))
        x = relu(self.fc1(x.flatten(1)))
        x = self.project(relu(self.fc2(x)))
        return Outputs(self.head(x), x)


SMALLEST_SIDE = 16
"""The least height and width that leave `Convolutional` a pixel."""


def _projection(width: int, projection: int) -> nn.Module:
    """MOON's projection head, which the last layer then stands on; nothing for 0."""
    if not projection:
        return nn.Identity()
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, projection))


def _shrunk(side: int) -> int:
    """A side's length after two rounds of convolution and pooling."""
    return ((side - 4) // 2 - 4) // 2
