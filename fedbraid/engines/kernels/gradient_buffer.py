"""The gradient buffer: one vector [clients, D] into which layers of a stack write their gradients directly.

A network's parameters are views into a vector, whose gradient autograd would concatenate from theirs: one pass over all
of a stack's memory for nothing. Here each forward pass opens a buffer for its gradients; a layer of this package gets
the slice of its parameter in the backward pass and writes there, and gradients of other layers are copied in.

Invariant: a slice is handed out once. A layer that is used twice, or tied weights, get separate memory the second time,
because autograd adds their gradients; two writers of one slice would overwrite each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbraid.core.vector import Layout

ALIGNED = 4
"""Rows are padded to multiples of this many numbers: cuBLAS needs 16-byte alignment for its fastest kernels."""


class PassGradient:
    """The gradient [clients, D] of one pass, allocated when the first layer asks for its slice."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.vector: Tensor | None = None
        self.placed = dict[str, Tensor]()

    def place(self, name: str, like: Tensor) -> Tensor:
        """Return memory for the gradient of parameter `name`, with the shape of `like` [clients, ...]."""
        if name in self.placed or name not in self.layout.names:  # used twice: autograd adds its gradients
            return like.new_empty(like.shape)
        if self.vector is None:
            padded = -(-self.layout.size // ALIGNED) * ALIGNED
            self.vector = like.new_empty(len(like), padded)[:, : self.layout.size]
        self.placed[name] = self._part(self.vector, name).view(like.shape)
        return self.placed[name]

    def joined(self, gradients: Sequence[Tensor], clients: int) -> Tensor:
        """Return the gradients [clients, ...] of all parameters as one vector [clients, D]; copy those not in place."""
        numbers = sum(part.numel() for part in self.placed.values())
        if self.vector is None or 2 * numbers < self.vector.numel():
            return torch.cat([g.reshape(clients, -1) for g in gradients], 1)
        for name, g in zip(self.layout.names, gradients, strict=True):
            part = self._part(self.vector, name)
            if name not in self.placed or g.data_ptr() != part.data_ptr():
                part.copy_(g.reshape(clients, -1))
        return self.vector

    def _part(self, vector: Tensor, name: str) -> Tensor:
        return vector[:, self.layout.span(name)]


@dataclass(frozen=True)
class GradientTarget:
    """The destination of one layer's gradients."""

    gradient: PassGradient | None = None  # None: into memory of their own
    layer: str = ""

    def weight(self, like: Tensor) -> Tensor:
        return self._place("weight", like)

    def bias(self, like: Tensor) -> Tensor:
        return self._place("bias", like)

    def _place(self, kind: str, like: Tensor) -> Tensor:
        return self.gradient.place(f"{self.layer}.{kind}", like) if self.gradient else like.new_empty(like.shape)


class GradientBuffer:
    """Gives the layers of a network access to the gradient of the current pass."""

    gradient: PassGradient | None = None

    def views(self, layout: Layout, w: Tensor) -> dict[str, Tensor]:
        """Return the parameters as views into `w`, and open the gradient of the pass that begins."""
        self.gradient = PassGradient(layout)
        return dict(zip(layout.names, _Apart.apply(w, self.gradient), strict=True))  # type: ignore[no-untyped-call]

    def target(self, layer: str) -> GradientTarget:
        """Return the destination of a layer's gradients in the current pass."""
        return GradientTarget(self.gradient, layer)


class _Apart(torch.autograd.Function):
    """Split a vector into parameters. The backward pass joins their gradients in the buffer."""

    @staticmethod
    def forward(w: Tensor, gradient: PassGradient) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in _apart(w[None], gradient.layout))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.gradient = inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Together.apply(ctx.gradient, *gradients), None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], w: Tensor, gradient: PassGradient) -> Any:
        parts = _apart(w.movedim(dims[0] or 0, 0), gradient.layout)
        return parts, (0,) * len(parts)


class _Together(torch.autograd.Function):
    """The backward pass: the gradients of the parameters as one vector."""

    @staticmethod
    def forward(gradient: PassGradient, *gradients: Tensor) -> Tensor:
        return gradient.joined([g[None] for g in gradients], 1)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], gradient: PassGradient, *gradients: Tensor) -> Any:
        clients = info.batch_size
        each = [
            g.expand(clients, *g.shape) if dim is None else g.movedim(dim, 0)
            for g, dim in zip(gradients, dims[1:], strict=True)
        ]
        return gradient.joined(each, clients), 0


def _apart(w: Tensor, layout: Layout) -> tuple[Tensor, ...]:
    parts = torch.split(w, list(layout.sizes), 1)
    return tuple(part.view(len(w), *shape) for part, shape in zip(parts, layout.shapes, strict=True))
