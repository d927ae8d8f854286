"""GroupNorm of a whole stack of clients, each with a scale and a level of its own: how its programs are started.

Tensors are [clients, batch, channels, height, width]; what comes out lies channels-last, as convolutions leave it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """Which norm it is."""

    count: int
    eps: float
    relu: bool = False  # followed by ReLU

    def tile(self, x: Tensor) -> dict[str, int]:
        """Pixels and channels that a program has in hand at a time."""
        _, _, channels, height, width = x.shape
        channels, pixels = (1 << (size - 1).bit_length() for size in (channels // self.count, height * width))
        pixels = min(pixels, max(1, 4096 // channels))
        return {"BP": pixels, "BC": channels, "num_warps": 8 if pixels * channels > 2048 else 4}


def forward(x: Tensor, gamma: Tensor, beta: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """The outputs, and the mean and one over the deviation of every group."""
    from fedbraid.engines.kernels.norm_programs import normalise

    clients, batch, channels, height, width = x.shape
    y = torch.empty(clients, batch, height, width, channels, dtype=x.dtype, device=x.device)
    stats = torch.empty(clients, batch, groups.count, 2, dtype=x.dtype, device=x.device)
    pixels, gamma, beta = x.flatten(3), _rows(gamma), _rows(beta)
    normalise[(batch * groups.count, clients)](
        pixels, gamma, beta, y, stats,
        channels, height * width, groups.count, channels // groups.count, groups.eps,
        *pixels.stride(), gamma.stride(0), beta.stride(0),
        **groups.tile(x), RELU=groups.relu,
    )  # fmt: skip
    return y.permute(0, 1, 4, 2, 3), stats


def gradients(
    d: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, stats: Tensor, groups: Groups
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the inputs, the scales and the levels."""
    from fedbraid.engines.kernels.norm_programs import slopes

    clients, batch, channels, height, width = x.shape
    dx = torch.empty(clients, batch, height, width, channels, dtype=x.dtype, device=x.device)
    sums = torch.empty(2, clients, batch, channels, dtype=x.dtype, device=x.device)
    pixels, received, gamma, beta = x.flatten(3), d.flatten(3), _rows(gamma), _rows(beta)
    slopes[(batch * groups.count, clients)](
        received, pixels, gamma, beta, stats, dx, sums,
        channels, height * width, groups.count, channels // groups.count,
        *received.stride(), *pixels.stride(), gamma.stride(0), beta.stride(0),
        **groups.tile(x), RELU=groups.relu,
    )  # fmt: skip
    of_gamma, of_beta = sums.sum(2)
    return dx.permute(0, 1, 4, 2, 3), of_gamma, of_beta


def _rows(t: Tensor) -> Tensor:
    """Each client's numbers in one piece, as they are in its vector."""
    return t if t.stride(1) == 1 else t.contiguous()
