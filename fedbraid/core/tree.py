"""Trees of tensors: nested dictionaries, as strands keep, send and upload them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

Tree = dict[str, Tensor]
"""What a strand sends, keeps or uploads: tensors by name."""


Arrays = dict[str, np.ndarray]
"""What a strand draws: arrays by name."""


class PerClient(dict[str, Tensor]):
    """A download whose tensors carry a leading cohort axis: each client receives its own row."""


@dataclass(frozen=True, eq=False)
class Ask:
    """What a server sends when clients are to answer before they train."""

    payload: Tree | PerClient = field(default_factory=dict)


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of a nested dictionary, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for branch in tree.values() for leaf in leaves(branch)]


def grow(tree: Any, f: Callable[..., Tensor], *others: Any) -> Any:
    """`f` on every tensor of `tree` (and of trees of the same shape)."""
    if isinstance(tree, Tensor):
        return f(tree, *others)
    return {key: grow(branch, f, *(other[key] for other in others)) for key, branch in tree.items()}


def rebuild(like: Any, tensors: Iterable[Tensor]) -> Any:
    """The inverse of `leaves`: a tree shaped like `like` that holds `tensors`."""
    rest = iter(tensors)
    return grow(like, lambda _: next(rest))


def stack(trees: Sequence[Any]) -> Any:
    """Trees of the same shape with a new leading axis."""
    return grow(trees[0], lambda *tensors: torch.stack(tensors), *trees[1:])


def joined(trees: Sequence[Any]) -> Any:
    """Trees of the same shape, one after the other along their leading axis."""
    return trees[0] if len(trees) == 1 else grow(trees[0], lambda *tensors: torch.cat(tensors), *trees[1:])


def rows(tree: Any, index: Any) -> Any:
    """`tree` with every tensor indexed along its leading axis."""
    return grow(tree, lambda tensor: tensor[index])


def nbytes(tree: Any) -> int:
    """How many bytes the tensors of a tree hold: what would cross a network."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))
