"""Every kind of network in a size that trains in a moment, with samples it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from helpers import SIZES
from torch import Tensor, nn

from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.models import build
from fedbraid.models.residual import ResNet, basic, bottleneck, norm_of, padded, projected
from fedbraid.models.transformer import VisionTransformer

TOKENS = ("", "?", "to", "be", "or", "not", "that", "is", "the", "question")
CLASSES = 3


@dataclass(frozen=True)
class Small:
    """A network by name and options, or made by hand where the named one has too many parameters."""

    name: str
    shape: tuple[int, ...]
    features: int
    options: dict[str, Any] = field(default_factory=dict)
    tokens: tuple[str, ...] = ()
    by_hand: Callable[[], nn.Module] | None = None

    def network(self, seed: int = 0) -> nn.Module:
        if self.by_hand:
            torch.manual_seed(seed)
            return self.by_hand()
        return build(self.name, self.shape, CLASSES, tokens=self.tokens, seed=seed, **self.options)

    def samples(self, count: int, seed: int = 0) -> Tensor:
        rng = np.random.default_rng(seed)
        if not self.tokens:
            return torch.as_tensor(rng.normal(size=(count, *self.shape)))
        x = rng.integers(1, len(self.tokens), (count, *self.shape))
        lengths = rng.integers(2, self.shape[0] + 1, count)
        return torch.as_tensor(np.where(np.arange(self.shape[0]) < lengths[:, None], x, 0))

    def data(self) -> tuple[Dataset, Partition]:
        """A federation's data, of clients of very different sizes."""
        rng = np.random.default_rng(0)
        n = sum(SIZES)
        train, test = (Split(self.samples(k).numpy(), rng.integers(0, CLASSES, k)) for k in (n, 4))
        owners = np.split(rng.permutation(n), np.cumsum(SIZES)[:-1])
        return Dataset("toy", train, test, CLASSES, tokens=self.tokens), Partition(tuple(owners))


def small_resnet(branch: Any, shortcut: Any) -> nn.Module:
    return ResNet((2, 8, 8), CLASSES, branch, shortcut, ((4, 1), (8, 2)), norm_of("group", 2, 4))


SMALL = {
    case.name + ("" if not case.options.get("projection") else " with a projection head"): case
    for case in (
        Small("logistic", (6,), 6),
        Small("mlp", (1, 3, 4), 5, {"hidden": [8, 5]}),
        Small("mlp", (6,), 4, {"projection": 4}),
        Small("perceptron", (6,), 6),
        Small("lenet", (1, 16, 18), 84),
        Small("lenet", (2, 16, 16), 7, {"projection": 7}),
        Small("cnn", (1, 16, 16), 192),
        Small("fedavg-cnn", (3, 5, 4), 512),
        Small("tiny-cnn", (2, 8, 9), 384),
        Small("resnet18", (2, 8, 8), 8, by_hand=lambda: small_resnet(basic, projected)),
        Small("resnet20", (2, 8, 8), 8, by_hand=lambda: small_resnet(basic, padded)),
        Small("resnet50", (2, 8, 8), 32, by_hand=lambda: small_resnet(bottleneck, projected)),
        Small("vit-tiny", (3, 8, 4), 192, {"depth": 1, "patch": 2}),
        Small("vit-small", (1, 8, 8), 12, by_hand=lambda: VisionTransformer((1, 8, 8), CLASSES, 12, 2, 3, 4)),
        Small("textcnn", (7,), 30, {"embedding": 4, "filters": 10}, TOKENS),
        Small("lstm", (6,), 5, {"embedding": 4, "hidden": 5}, TOKENS),
        Small("lstm", (6,), 3, {"embedding": 4, "hidden": 8, "layers": 1, "projection": 3}, TOKENS),
    )
}
