"""Residual networks for small images (He et al., 2016): a 3x3 stem of stride 1, and no pooling after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from fedbraid.config.registry import whole
from fedbraid.core.outputs import Outputs
from fedbraid.errors import UserError, unknown
from fedbraid.models.projection import projection_head
from fedbraid.models.takes import Shape

NormName = Literal["group", "batch"]
Norm = Callable[[int], nn.Module]
"""Makes the normalisation of so many channels."""
Branch = Callable[[int, int, int, Norm], tuple[nn.Module, int]]
"""(channels in, width, stride, norm) -> a block's layers, and the channels they give."""
Shortcut = Callable[[int, int, int, Norm], nn.Module]
"""(channels in, channels out, stride, norm) -> the way past a block."""


def resnet18(shape: Shape, classes: int, norm: NormName = "group", groups: int = 2, projection: int = 0) -> nn.Module:
    stages = ((64, 2), (128, 2), (256, 2), (512, 2))
    return ResNet(shape, classes, basic, projected, stages, norm_of(norm, groups, 64), projection)


def resnet20(shape: Shape, classes: int, norm: NormName = "group", groups: int = 2, projection: int = 0) -> nn.Module:
    stages = ((16, 3), (32, 3), (64, 3))
    return ResNet(shape, classes, basic, padded, stages, norm_of(norm, groups, 16), projection)


def resnet50(shape: Shape, classes: int, norm: NormName = "group", groups: int = 2, projection: int = 0) -> nn.Module:
    stages = ((64, 3), (128, 4), (256, 6), (512, 3))
    return ResNet(shape, classes, bottleneck, projected, stages, norm_of(norm, groups, 64), projection)


class ResNet(nn.Module):
    """Stages of residual blocks, each stage but the first at half the resolution; the mean over pixels is the feature.

    Convolutions start from He's normal distribution (by their outputs, as in torchvision).
    """

    def __init__(
        self,
        shape: Shape,
        classes: int,
        branch: Branch,
        shortcut: Shortcut,
        stages: tuple[tuple[int, int], ...],  # (width, blocks) of each
        norm: Norm,
        projection: int = 0,
    ) -> None:
        super().__init__()
        channels = stages[0][0]
        self.stem = nn.Sequential(convolution(shape[0], channels, 3), norm(channels), nn.ReLU())
        self.blocks = nn.Sequential()
        for stage, (width, blocks) in enumerate(stages):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                layers, out = branch(channels, width, stride, norm)
                self.blocks.append(Residual(layers, shortcut(channels, out, stride, norm)))
                channels = out
        self.project = projection_head(channels, projection)
        self.head = nn.Linear(projection or channels, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Outputs:
        x = self.project(self.blocks(self.stem(x)).mean((2, 3)))
        return Outputs(self.head(x), x)


class Residual(nn.Module):
    def __init__(self, layers: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.layers, self.shortcut = layers, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.layers(x) + self.shortcut(x))


def basic(channels: int, width: int, stride: int, norm: Norm) -> tuple[nn.Module, int]:
    """Two 3x3 convolutions."""
    layers = nn.Sequential(
        convolution(channels, width, 3, stride), norm(width), nn.ReLU(), convolution(width, width, 3), norm(width)
    )
    return layers, width


def bottleneck(channels: int, width: int, stride: int, norm: Norm) -> tuple[nn.Module, int]:
    """A 3x3 convolution between two 1x1 that narrow and widen; the stride is the 3x3's, as in torchvision."""
    narrow = convolution(channels, width, 1), norm(width), nn.ReLU()
    spatial = convolution(width, width, 3, stride), norm(width), nn.ReLU()
    return nn.Sequential(*narrow, *spatial, convolution(width, 4 * width, 1), norm(4 * width)), 4 * width


def projected(channels: int, out: int, stride: int, norm: Norm) -> nn.Module:
    """Option B: a 1x1 convolution where the shape changes."""
    if channels == out and stride == 1:
        return nn.Identity()
    return nn.Sequential(convolution(channels, out, 1, stride), norm(out))


def padded(channels: int, out: int, stride: int, norm: Norm) -> nn.Module:
    """Option A: every other pixel, and zeros for the channels that are new; no parameters."""
    return nn.Identity() if channels == out and stride == 1 else Padded(out - channels, stride)


class Padded(nn.Module):
    def __init__(self, more: int, stride: int) -> None:
        super().__init__()
        self.more, self.stride = more, stride

    def forward(self, x: Tensor) -> Tensor:
        before = self.more // 2
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.more - before))


def convolution(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """One that keeps the size (but for its stride); the norm after it has the bias."""
    return nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)


def norm_of(kind: NormName, groups: int, narrowest: int) -> Norm:
    """GroupNorm, or BatchNorm, which mixes the samples of a batch and so needs the loop engine."""
    if kind == "batch":
        return nn.BatchNorm2d
    if kind != "group":
        raise unknown("norm", str(kind), ("group", "batch"))
    if narrowest % whole("groups", groups):
        raise UserError(f"groups={groups} does not divide the {narrowest} channels of the first layer; try groups=2")
    return lambda channels: nn.GroupNorm(groups, channels)
