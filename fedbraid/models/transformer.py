"""Vision transformers as in DeiT (Touvron et al., 2021): pre-norm, a class token, learned positions, no dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from fedbraid.config.registry import whole
from fedbraid.core.outputs import Outputs
from fedbraid.errors import UserError
from fedbraid.models.projection import projection_head
from fedbraid.models.takes import Shape


def vit_small(shape: Shape, classes: int, patch: int | None = None, depth: int = 12, projection: int = 0) -> nn.Module:
    return VisionTransformer(shape, classes, 384, depth, 6, patch_size(shape, patch), projection)


def vit_tiny(shape: Shape, classes: int, patch: int | None = None, depth: int = 12, projection: int = 0) -> nn.Module:
    return VisionTransformer(shape, classes, 192, depth, 3, patch_size(shape, patch), projection)


class VisionTransformer(nn.Module):
    """Patches as tokens, a class token before them, whose last state is the feature.

    Weights start from DeiT's normal distribution of deviation 0.02, biases from 0; the layer that embeds patches has
    torch's default.
    """

    def __init__(
        self, shape: Shape, classes: int, width: int, depth: int, heads: int, patch: int, projection: int = 0
    ) -> None:
        super().__init__()
        colours, high, wide = shape
        self.patch = patch
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads) for _ in range(whole("depth", depth))))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.project = projection_head(width, projection)
        self.head = nn.Linear(projection or width, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.embed = nn.Linear(colours * patch * patch, width)
        self.token = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, width), std=0.02))
        places = 1 + (high // patch) * (wide // patch)
        self.positions = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, places, width), std=0.02))

    def forward(self, x: Tensor) -> Outputs:
        x = self.embed(patches(x, self.patch))
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        x = self.project(self.norm(self.blocks(x)[:, 0]))
        return Outputs(self.head(x), x)


class EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attended(self.norm1(x))
        x = x + self.down(gelu(self.up(self.norm2(x))))
        return x

    def attended(self, x: Tensor) -> Tensor:
        # written out, since torch's fused attention has no batching rule over clients and would run them one by one
        q, k, v = torch.unflatten(self.qkv(x), -1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        attention = (q * q.shape[-1] ** -0.5 @ k.mT).softmax(-1)
        mixed: Tensor = self.out((attention @ v).transpose(1, 2).flatten(2))
        return mixed


def patches(x: Tensor, size: int) -> Tensor:
    """[B, patches, colours * size * size]: what a convolution of that kernel and stride would look at."""
    squares = torch.unflatten(
        torch.unflatten(x, 3, (-1, size)), 2, (-1, size)
    )  # [B, colours, rows, size, columns, size]
    return squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def patch_size(shape: Shape, wanted: int | None) -> int:
    """The side of a patch, which must divide both sides of the image.

    Where none is asked for, the largest of 16, 8, 4, 2 and 1 that leaves 7 patches a side: 4 for 28 and 32 pixels,
    8 for 56 and 64, 16 for 224.
    """
    sides = shape[1:]
    if wanted is None:
        return next((p for p in (16, 8, 4, 2) if not any(s % p for s in sides) and min(sides) >= 7 * p), 1)
    if any(side % whole("patch", wanted) for side in sides):
        possible = [str(p) for p in range(1, min(sides) + 1) if not any(s % p for s in sides)]
        raise UserError(
            f"patch={wanted} does not divide images of {sides[0]}x{sides[1]} pixels; possible: {', '.join(possible)}"
        )
    return wanted
