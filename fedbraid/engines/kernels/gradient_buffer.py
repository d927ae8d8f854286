"""One vector for the gradients of a whole stack: layers write theirs where it belongs, and nothing is joined later.

A network's parameters are views into a vector, whose gradient autograd would put together from theirs: once through all
of a stack's memory for nothing. Here each pass forward brings slots for its gradients; a layer of ours asks for the
place of its own on the way back, and what other layers return is copied in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbraid.core.vector import Layout

ALIGNED = 4
"""Rows begin at multiples of so many numbers: libraries multiply faster into these."""


class Slots:
    """The gradient of one pass: [clients, D], where somebody has asked for a place in it."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.vector: Tensor | None = None
        self.placed = dict[str, Tensor]()

    def place(self, name: str, like: Tensor) -> Tensor:
        """Memory for the gradient of the parameter called `name`, which is `like` [clients, ...]."""
        if name in self.placed or name not in self.layout.names:  # used twice: its gradients will be added
            return like.new_empty(like.shape)
        if self.vector is None:
            padded = -(-self.layout.size // ALIGNED) * ALIGNED
            self.vector = like.new_empty(len(like), padded)[:, : self.layout.size]
        self.placed[name] = self._part(self.vector, name).view(like.shape)
        return self.placed[name]

    def joined(self, gradients: Sequence[Tensor], clients: int) -> Tensor:
        """All gradients [clients, ...] in their order as one vector."""
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
class Home:
    """Where one layer's gradients go."""

    slots: Slots | None = None  # None: into memory of their own
    layer: str = ""

    def weight(self, like: Tensor) -> Tensor:
        return self._place("weight", like)

    def bias(self, like: Tensor) -> Tensor:
        return self._place("bias", like)

    def _place(self, kind: str, like: Tensor) -> Tensor:
        return self.slots.place(f"{self.layer}.{kind}", like) if self.slots else like.new_empty(like.shape)


class Room:
    """Brings the slots of each pass to the layers of a network."""

    slots: Slots | None = None

    def views(self, layout: Layout, w: Tensor) -> dict[str, Tensor]:
        """The parameters, as views into `w`, for the pass that begins."""
        self.slots = Slots(layout)
        return dict(zip(layout.names, _Apart.apply(w, self.slots), strict=True))  # type: ignore[no-untyped-call]

    def home(self, layer: str) -> Home:
        """Of a layer's gradients in the present pass."""
        return Home(self.slots, layer)


class _Apart(torch.autograd.Function):
    """A vector as the tensors that lie in it."""

    @staticmethod
    def forward(w: Tensor, slots: Slots) -> tuple[Tensor, ...]:
        return tuple(t[0] for t in _apart(w[None], slots.layout))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.slots = inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Together.apply(ctx.slots, *gradients), None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], w: Tensor, slots: Slots) -> Any:
        parts = _apart(w.movedim(dims[0] or 0, 0), slots.layout)
        return parts, (0,) * len(parts)


class _Together(torch.autograd.Function):
    """The way back: gradients of the parts as one vector."""

    @staticmethod
    def forward(slots: Slots, *gradients: Tensor) -> Tensor:
        return slots.joined([g[None] for g in gradients], 1)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], slots: Slots, *gradients: Tensor) -> Any:
        clients = info.batch_size
        each = [
            g.expand(clients, *g.shape) if dim is None else g.movedim(dim, 0)
            for g, dim in zip(gradients, dims[1:], strict=True)
        ]
        return slots.joined(each, clients), 0


def _apart(w: Tensor, layout: Layout) -> tuple[Tensor, ...]:
    parts = torch.split(w, list(layout.sizes), 1)
    return tuple(part.view(len(w), *shape) for part, shape in zip(parts, layout.shapes, strict=True))
