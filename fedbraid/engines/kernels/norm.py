"""GroupNorm of a stack of clients with scales and shifts of their own: launches of the Triton programs.

Tensors are [clients, batch, channels, height, width]; outputs are channels-last, like those of convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GroupNormSpec:
    """Hyper-parameters of a GroupNorm kernel."""

    count: int
    eps: float
    relu: bool = False  # followed by ReLU

    def tile(self, x: Tensor) -> dict[str, int]:
        """Return the tile (pixels, channels) of a program."""
        _, _, channels, height, width = x.shape
        channels, pixels = (1 << (size - 1).bit_length() for size in (channels // self.count, height * width))
        pixels = min(pixels, max(1, 4096 // channels))
        return {"BP": pixels, "BC": channels, "num_warps": 8 if pixels * channels > 2048 else 4}


def forward(x: Tensor, gamma: Tensor, beta: Tensor, groups: GroupNormSpec) -> tuple[Tensor, Tensor]:
    """Return outputs, and (mean, 1 / deviation) of every group [clients, batch, groups, 2]."""
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
    d: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, stats: Tensor, groups: GroupNormSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of inputs, scales and shifts."""
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
    """Return `t` with each client's row contiguous, which it is as a view of the client's vector."""
    return t if t.stride(1) == 1 else t.contiguous()
