"""The gradient as a function transform, which `vmap` can batch.

`torch.func.grad_and_value` loads torch's compiler, two seconds of imports, only to keep it out of one call to autograd.
Nothing is compiled here, so the same is done from the parts that it is made of, where this torch has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

try:
    from torch._functorch import eager_transforms as parts

    level_of, enter = parts.grad_increment_nesting, parts._wrap_all_tensors
    differentiable, leave = parts._create_differentiable, parts._undo_create_differentiable
    HAS_PARTS = True
except (ImportError, AttributeError):  # they are no public names, and may be called otherwise in another torch
    HAS_PARTS = False

Objective = Callable[[Tensor], tuple[Tensor, Any]]
"""A function of the parameters `w` [D] that returns the loss [] and auxiliary outputs: a tensor, or tuples of them."""


def gradient(objective: Objective, w: Tensor) -> tuple[Tensor, tuple[Tensor, Any]]:
    """Return the gradient [D] at `w` [D], and (the loss [], the auxiliary outputs) there."""
    return from_parts(objective, w) if HAS_PARTS else from_torch(objective, w)


def from_torch(objective: Objective, w: Tensor) -> tuple[Tensor, tuple[Tensor, Any]]:
    result: tuple[Tensor, tuple[Tensor, Any]] = grad_and_value(objective, has_aux=True)(w)
    return result


def from_parts(objective: Objective, w: Tensor) -> tuple[Tensor, tuple[Tensor, Any]]:
    # One functorch level: tensors of this level are invisible outside it, so that an enclosing `vmap` sees plain
    # operations. `create_graph` keeps the backward pass visible to that `vmap`; without it, batched tensors would reach
    # autograd's C++ engine unwrapped.
    with level_of() as level, torch.enable_grad():
        at = differentiable(enter(w, level), level)
        loss, more = objective(at)
        g = None
        if loss.requires_grad:
            (g,) = torch.autograd.grad(loss, at, create_graph=True, allow_unused=True)
        if g is None:  # the loss does not depend on `w`
            g = torch.zeros_like(at)
        return leave(g, level), (leave(loss, level), leave(more, level))
