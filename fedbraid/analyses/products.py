"""Products of vectors with the Hessian of a model's loss, which is never formed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fedbraid.analyses.spectrum import Matrix
from fedbraid.core.model import Model
from fedbraid.core.task import Task, task_loss
from fedbraid.engines.memory import free_memory
from fedbraid.engines.samples import Samples
from fedbraid.models.lstm import Lstm

SHARE = 0.4
"""How much of the free memory a batch's graph may take; its second derivative takes as much again."""
SMALL, LARGE = 128, 2048
"""The largest batches on a CPU, whose caches more would not fit, and on a GPU."""


@dataclass(frozen=True, eq=False)
class Loss:
    """The mean loss of a model over some samples, as a function of the parameters that are trained.

    The network is as it is evaluated: BatchNorm with its running statistics. Parameters that are frozen stay as they
    are and take no part.
    """

    model: Model
    w: Tensor
    buffers: Tensor
    samples: Samples
    index: Tensor  # [n] which of them
    task: Task

    @property
    def at(self) -> Tensor:
        """The trained parameters."""
        return self.w if self.model.frozen is None else self.w[~self.model.frozen]

    def sum_over(self, index: Tensor, at: Tensor) -> Tensor:
        """The sum of the losses of some samples, divided by the number of all."""
        w = at if self.model.frozen is None else self.w.masked_scatter(~self.model.frozen, at)
        batch = self.samples.batch(index, torch.ones(len(index), dtype=w.dtype, device=w.device))
        loss = task_loss(self.task, self.model.predict(w, self.buffers, batch.x).logits, batch)
        return loss * (len(index) / len(self.index))


def hessian(loss: Loss, on_product: Callable[[], None] = lambda: None) -> Matrix:
    """The Hessian of a loss; `on_product` is called after each vector that was multiplied."""
    size = batch_that_fits(loss)

    def times(rows: Tensor) -> Tensor:
        result = torch.zeros_like(rows)
        for index in torch.split(loss.index, size):
            for row, product in zip(result, batch_products(loss, index, rows), strict=True):
                row += product
        for _ in rows:
            on_product()
        return result

    return Matrix(len(loss.at), times, loss.w.dtype, loss.w.device)


def batch_products(loss: Loss, index: Tensor, rows: Tensor) -> Iterator[Tensor]:
    """Each row times the Hessian of one batch's part of the loss: the derivative of gradient · row.

    Reverse mode twice: forward over reverse is no faster here, and torch's LSTM and GroupNorm kernels have none.
    """
    at = loss.at.detach().clone().requires_grad_()
    with torch.enable_grad(), twice_differentiable(loss.model.evaluating):
        (gradient,) = torch.autograd.grad(loss.sum_over(index, at), at, create_graph=True)
        for k, row in enumerate(rows):
            more = k + 1 < len(rows)
            yield torch.autograd.grad(gradient, at, row, retain_graph=more)[0]


def twice_differentiable(module: nn.Module) -> AbstractContextManager[None]:
    """cuDNN's recurrent layers have no second derivative; torch's own have."""
    if any(isinstance(layer, nn.RNNBase | Lstm) for layer in module.modules()):
        return cast(AbstractContextManager[None], torch.backends.cudnn.flags(enabled=False))
    return nullcontext()


def batch_that_fits(loss: Loss) -> int:
    """Return the number of samples whose gradient graph should fit into the free memory."""
    each = max(1, graph_bytes(loss, loss.index[:2]) - graph_bytes(loss, loss.index[:1]))
    fits = int(SHARE * free_memory(loss.w.device) / each)
    return max(1, min(fits, SMALL if loss.w.device.type == "cpu" else LARGE))


def graph_bytes(loss: Loss, index: Tensor) -> int:
    """Measure the bytes that a gradient of some samples keeps for its own derivative."""
    saved = 0

    def note(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel() * tensor.element_size()
        return tensor

    at = loss.at.detach().clone().requires_grad_()
    with torch.enable_grad(), twice_differentiable(loss.model.evaluating), saved_tensors_hooks(note, lambda t: t):
        torch.autograd.grad(loss.sum_over(index, at), at, create_graph=True)
    return saved
