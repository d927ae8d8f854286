"""Evaluation of a model on test or validation samples, class by class and client by client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.metrics import measured
from fedbraid.core.model import Model
from fedbraid.core.task import task_loss
from fedbraid.data.dataset import Partition
from fedbraid.engines.samples import Samples
from fedbraid.engines.transfer import HostCopy

BATCH, LARGE = 1024, 4096
"""Test samples that are looked at together, on a CPU and on a GPU."""
NUMBERS = 2**24
"""Numbers in such a batch at most, on a GPU: large images go in smaller ones."""


Scores = Callable[[], tuple[dict[str, Any], np.ndarray]]
"""Waits for a GPU, and gives accuracy, loss, per-class accuracy and what else was asked for on a test set, and which
samples were right.

Classes without test samples have accuracy None, and so has a regression.
"""


def evaluate(model: Model, w: Tensor, buffers: Tensor, test: Samples) -> tuple[dict[str, Any], np.ndarray]:
    """Accuracy, loss and per-class accuracy on a test set, and which of its samples were right."""
    return launch_evaluation(model, w, buffers, test)()


@torch.no_grad()
def launch_evaluation(model: Model, w: Tensor, buffers: Tensor, test: Samples, metrics: Sequence[str] = ()) -> Scores:
    """The start of it, which a GPU may end later; with `metrics` beyond those."""
    losses, right, answers = test.x.new_zeros((), dtype=test.dtype), [], []
    for index in torch.split(torch.arange(len(test), device=test.x.device), _batch(test)):
        batch = test.batch(index, torch.ones(len(index), dtype=test.dtype, device=index.device))
        logits = model.predict(w, buffers, batch.x).logits
        losses = losses + task_loss("classification" if test.classes else "regression", logits, batch) * len(index)
        if test.classes:
            right.append(logits.argmax(-1) == test.y[index])
        if metrics:
            answers.append(logits)
    more = HostCopy(measured(metrics, torch.cat(answers), test.y)) if metrics else None
    loss, found = HostCopy(losses / len(test)), HostCopy(torch.cat(right)) if right else None

    def scores() -> tuple[dict[str, Any], np.ndarray]:
        scored: dict[str, Any] = {"accuracy": None, "loss": float(loss.numpy()), "per_class": None}
        if more is not None:
            values = more.numpy().tolist()
            scored |= {name: None if isnan(v) else v for name, v in zip(metrics, values, strict=True)}
        if found is None:
            return scored, np.zeros(0)
        correct = found.numpy()
        total = np.bincount(test.labels, minlength=test.classes)
        hits = np.bincount(test.labels, weights=correct, minlength=test.classes)
        scored["accuracy"] = float(correct.mean())
        scored["per_class"] = [float(h / n) if n else None for h, n in zip(hits, total, strict=True)]
        return scored, correct

    return scores


def validation(accuracy: float | None, loss: float | None) -> dict[str, float | None]:
    """Scores on the samples that nobody trains on, as a line of the log has them."""
    return {"validation_accuracy": accuracy, "validation_loss": loss}


def _batch(test: Samples) -> int:
    if test.x.device.type == "cpu":
        return BATCH
    return min(LARGE, max(1, NUMBERS // test.x[0].numel()))


def per_client(
    per_class: list[float | None], correct: np.ndarray, partition: Partition, label_counts: np.ndarray
) -> dict[str, Any]:
    """Each client's accuracy: on its own test samples where it has some, otherwise on a test set with its labels.

    The latter is the mean of the per-class accuracies under the client's label shares: what the model would score on
    a test set that follows the client's distribution. A client of whose classes none is tested has none.
    """
    known = np.array([a is not None for a in per_class])
    counts = label_counts[:, known]
    totals = counts.sum(axis=1)
    each = counts @ np.array([a for a in per_class if a is not None]) / np.where(totals, totals, np.nan)
    if partition.client_tests is not None:
        tested = np.array([len(own) for own in partition.client_tests])
        owners = np.repeat(np.arange(len(tested)), tested)
        own = np.concatenate(partition.client_tests).astype(np.int64)
        right = np.bincount(owners, weights=correct[own], minlength=len(tested))
        each = np.where(tested, right / np.maximum(tested, 1), each)
    return over_clients(each)


def over_clients(each: np.ndarray, higher_is_better: bool = True) -> dict[str, Any]:
    """Clients' scores [clients], NaN where a client has none, as a line of the log has them."""
    some, extreme = each[~np.isnan(each)], "min" if higher_is_better else "max"
    if not len(some):
        return {"mean": None, "std": None, extreme: None, "worst10": None, "each": [None] * len(each)}
    worst = (np.sort(some) if higher_is_better else np.sort(some)[::-1])[: max(1, len(some) // 10)]
    return {
        "mean": float(some.mean()),
        "std": float(some.std()),
        extreme: float(worst[0]),
        "worst10": float(worst.mean()),
        "each": [None if np.isnan(a) else float(a) for a in each],
    }


def by_group(per_class: list[float | None], groups: Mapping[str, Sequence[int]]) -> dict[str, float | None]:
    """The mean accuracy of each group's classes; None for a group without test samples."""
    known = {name: [a for a in (per_class[c] for c in members) if a is not None] for name, members in groups.items()}
    return {name: float(np.mean(values)) if values else None for name, values in known.items()}
