"""Limits on what one client can do to a federation's model, by its numbers or by what it says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fedbraid.core.update_checks import Ranges, outliers, reason_against
from fedbraid.errors import UserError

OnOutlier = Literal["warn", "clip", "drop"]


@dataclass(frozen=True)
class UpdateLimits:
    """Limits on a client's update and on what it says of itself.

    Args:
        max_samples: samples to train on, and to test on, that a client can have.
        max_share: share of all clients' training samples that one client can have; 1 = any.
        on_outlier: what happens to an update that is much longer than the others of its round: only a line of the log,
            it is shortened to the limit, or the client is left out of the round.
        outlier_factor: how many times the round's median length is "much longer".
    """

    max_samples: int = 10**9
    max_share: float = 1.0
    on_outlier: OnOutlier = "warn"
    outlier_factor: float = 10.0

    def __post_init__(self) -> None:
        if self.max_samples < 1 or not 0 < self.max_share <= 1 or not self.outlier_factor > 1:
            raise UserError("max_samples is at least 1, max_share above 0 and at most 1, and outlier_factor above 1")
        if self.on_outlier not in get_args(OnOutlier):
            raise UserError(f"on_outlier is warn, clip or drop, not {self.on_outlier!r}")


@dataclass(frozen=True)
class Outlier:
    """A client whose update is much longer than the others of its round."""

    times: float  # the median's length
    shorter: Tensor  # its model with the update cut to the limit

    def __str__(self) -> str:
        return f"its update is {self.times:,.0f} times as long as the median of the round"


def refused(
    uploads: Mapping[str, Mapping[str, Tensor]], starts: Mapping[str, Tensor], within: Ranges, longest: float
) -> dict[str, str]:
    """Return why clients' uploads are refused, by client.

    Args:
        uploads: by client and name.
        starts: the models that clients started from, of those that upload a model.
        within: the ranges that strands declare.
        longest: length of the longest update that an honest client can have.
    """
    reasons = {}
    for name, tree in uploads.items():
        start = starts.get(name)
        reason = reason_against(dict(tree), within, start)
        if not reason and start is not None and (length := _length(tree["model"], start)) > longest:
            reason = f"its update has the length {length:.6g}, and is clipped to {longest:.6g} by every client"
        if reason:
            reasons[name] = reason
    return reasons


def find_outliers(models: Mapping[str, Tensor], starts: Mapping[str, Tensor], factor: float) -> dict[str, Outlier]:
    """Return the clients whose updates are longer than `factor` times the median of these."""
    names = list(models)
    lengths = [_length(models[name], starts[name]) for name in names]
    found = {}
    for place, times in outliers(lengths, factor):
        start, update = starts[names[place]], models[names[place]] - starts[names[place]]
        found[names[place]] = Outlier(times, start + update * (factor / times))
    return found


def _length(model: Tensor, start: Tensor) -> float:
    return float(torch.linalg.vector_norm((model - start).double()))
