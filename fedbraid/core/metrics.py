"""What a test set says of a model beside accuracy and loss, for `evaluate.metrics`.

Each metric is a function of the network's answers [samples, classes] (of a regression [samples, 1]) and the labels
[samples]. All are computed in float64 where the answers are, without a word from the host, so that a GPU is not waited
for. What cannot be said, since no class that it needs has test samples, is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbraid.core.task import Task
from fedbraid.errors import UserError

BINS = 15
"""Of the calibration error."""
TOP = 5


def balanced_accuracy(answers: Tensor, y: Tensor) -> Tensor:
    """The mean over classes of the share of their samples that are right."""
    tested, right = _per_class(answers, y), _per_class(answers, y, answers.argmax(-1) == y)
    return _mean_where(tested > 0, right / tested)


def macro_f1(answers: Tensor, y: Tensor) -> Tensor:
    """The mean over classes of the harmonic mean of precision and recall."""
    said = answers.argmax(-1)
    tested, told, right = _per_class(answers, y), _per_class(answers, said), _per_class(answers, y, said == y)
    return _mean_where(tested > 0, 2 * right / (tested + told))


def auroc(answers: Tensor, y: Tensor) -> Tensor:
    """How often a sample of a class is given a higher probability of it than one of the others; a tie counts half."""
    hits, below, up_to = _in_order(*_one_against_rest(answers, y))
    positive = hits.sum(-1)
    negative = hits.shape[-1] - positive
    ranks = (hits * (below + up_to + 1)).sum(-1) / 2  # of equals the mean one
    return _mean_where((positive > 0) & (negative > 0), (ranks - positive * (positive + 1) / 2) / (positive * negative))


def auprc(answers: Tensor, y: Tensor) -> Tensor:
    """Average precision: the mean over a class's samples of the precision at their own probability."""
    hits, below, _ = _in_order(*_one_against_rest(answers, y))
    positive = hits.sum(-1, keepdim=True)
    found = positive - (hits.cumsum(-1) - hits).gather(-1, below)  # samples of the class at this probability or above
    precision = found / (hits.shape[-1] - below)
    return _mean_where(positive[:, 0] > 0, (hits * precision).sum(-1) / positive[:, 0])


def ece(answers: Tensor, y: Tensor) -> Tensor:
    """How far accuracy is from confidence, in bins of equal width of the top probability, by their samples."""
    confidence, right = answers.double().softmax(-1).amax(-1), answers.argmax(-1) == y
    edges = torch.arange(1, BINS, device=y.device, dtype=torch.float64) / BINS
    bins = torch.bucketize(confidence, edges) == torch.arange(BINS, device=y.device)[:, None]
    return (bins * (right.double() - confidence)).sum(-1).abs().sum() / len(y)


def top5(answers: Tensor, y: Tensor) -> Tensor:
    """The share of samples whose class is among the five likeliest; a tie counts by the places that are left for it."""
    own = answers.gather(-1, y[:, None])
    above, equal = (answers > own).sum(-1), (answers == own).sum(-1)
    return ((TOP - above).double() / equal).clamp(0, 1).mean()


def mae(answers: Tensor, y: Tensor) -> Tensor:
    """The mean absolute error."""
    return _errors(answers, y).abs().mean()


def rmse(answers: Tensor, y: Tensor) -> Tensor:
    """The root of the mean squared error."""
    return _errors(answers, y).square().mean().sqrt()


def r2(answers: Tensor, y: Tensor) -> Tensor:
    """The share of the labels' variance that is explained."""
    around = (y.double() - y.double().mean()).square().sum()
    return 1 - _errors(answers, y).square().sum() / torch.where(around > 0, around, torch.nan)


@dataclass(frozen=True)
class Metric:
    """A metric, and how it is shown."""

    title: str
    of: Callable[[Tensor, Tensor], Tensor]
    task: Task = "classification"
    higher_is_better: bool = True
    more_classes_than: int = 0

    @property
    def is_share(self) -> bool:
        """Whether it is shown in per cent."""
        return self.task == "classification"

    @property
    def title_with_unit(self) -> str:
        return f"{self.title} (%)" if self.is_share else self.title


METRICS = {
    "balanced_accuracy": Metric("balanced accuracy", balanced_accuracy),
    "macro_f1": Metric("macro F1", macro_f1),
    "auroc": Metric("AUROC", auroc),
    "auprc": Metric("AUPRC", auprc),
    "ece": Metric("ECE", ece, higher_is_better=False),
    "top5": Metric("top 5", top5, more_classes_than=TOP),
    "mae": Metric("MAE", mae, "regression", higher_is_better=False),
    "rmse": Metric("RMSE", rmse, "regression", higher_is_better=False),
    "r2": Metric("R²", r2, "regression"),
}
"""By their names in `evaluate.metrics`."""


def is_share(key: str) -> bool:
    """Whether a key of the log is an accuracy or another metric that is shown in per cent."""
    return key in ("accuracy", "validation_accuracy") or (key in METRICS and METRICS[key].is_share)


def measured(names: Sequence[str], answers: Tensor, y: Tensor) -> Tensor:
    """[names] the metrics; NaN where the network's answers are no numbers, of which the order would be none either."""
    values = torch.stack([METRICS[name].of(answers.nan_to_num(), y) for name in names])
    return torch.where(answers.isfinite().all(), values, torch.nan)


def check_metrics(names: Sequence[str], task: Task, classes: int, data: str) -> None:
    """That each can be had for such data."""
    for name in names:
        metric = METRICS[name]
        if metric.task != task:
            raise UserError(f"{name} in evaluate.metrics is for a {metric.task}, and {data} is a {task}; leave it out")
        if classes <= metric.more_classes_than:
            raise UserError(
                f"{name} in evaluate.metrics needs more than {metric.more_classes_than} classes, and {data} has "
                f"{classes}; leave it out"
            )


def _per_class(answers: Tensor, labels: Tensor, counted: Tensor | None = None) -> Tensor:
    """[classes] how many samples, or of those that are counted, have each label."""
    ones = torch.ones_like(labels, dtype=torch.float64) if counted is None else counted.double()
    return ones.new_zeros(answers.shape[-1]).index_add(0, labels, ones)


def _mean_where(known: Tensor, values: Tensor) -> Tensor:
    return torch.where(known, values, 0).sum() / known.sum()


def _one_against_rest(answers: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """[k, samples] the probabilities of each class and whose it is; of two classes the second one's log odds alone."""
    own = y == torch.arange(answers.shape[-1], device=y.device)[:, None]
    if len(own) == 2:  # the order is that of probabilities, which would all be 1 where it is sure
        return (answers[:, 1].double() - answers[:, 0])[None], own[1:]
    return answers.double().softmax(-1).T.contiguous(), own


def _in_order(scores: Tensor, own: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[k, samples] by rising score: which are of the class, how many score less, and how many score no more."""
    ordered, order = scores.sort(-1)
    below, up_to = (torch.searchsorted(ordered, ordered, right=right) for right in (False, True))
    return own.gather(-1, order).double(), below, up_to


def _errors(answers: Tensor, y: Tensor) -> Tensor:
    return answers.squeeze(-1).double() - y.double()
