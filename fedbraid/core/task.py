"""What a client learns: classes or numbers."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from fedbraid.core.batch import Batch

Task = Literal["classification", "regression"]


def sample_losses(task: Task, logits: Tensor, batch: Batch) -> Tensor:
    """[B] each sample's loss: cross-entropy with its label shares, or half the squared error."""
    if task == "regression":
        return (logits.squeeze(-1) - batch.y).square() / 2
    return -(batch.y * logits.log_softmax(-1)).sum(-1)


def task_loss(task: Task, logits: Tensor, batch: Batch) -> Tensor:
    """The mean loss over the real samples of a batch."""
    return batch.mean(sample_losses(task, logits, batch))
