"""What distillation strands share: divergences between two networks' predictions."""

import math

import torch
from torch import Tensor

NEVER = -1e30
"""A logit that no class comes back from, yet finite: its probability is 0 and its gradient too."""


def entropy(logits: Tensor) -> Tensor:
    """[B] the entropy of softmax(logits) in nats."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def divergence(teacher: Tensor, student: Tensor, kind: str = "kl") -> Tensor:
    """[B] KL(teacher ‖ student) of the softmax of logits, the reverse, or the Jensen-Shannon divergence."""
    t, s = teacher.log_softmax(-1), student.log_softmax(-1)
    if kind == "reverse":
        t, s = s, t
    if kind == "js":
        middle = torch.logaddexp(t, s) - math.log(2)
        return (_kl(t, middle) + _kl(s, middle)) / 2
    return _kl(t, s)


def without_true_class(logits: Tensor, y: Tensor) -> Tensor:
    """Logits in which the sample's (main) class has no chance."""
    return torch.where(y == y.amax(-1, keepdim=True), NEVER, logits)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - log_q)).sum(-1)
