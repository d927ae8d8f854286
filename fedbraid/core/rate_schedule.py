"""The learning rate over rounds."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

from fedbraid.core.options import default
from fedbraid.errors import UserError


@dataclass(frozen=True)
class Schedule:
    """What a round's learning rate is multiplied with, beside the optimiser's own decay."""

    shape: Literal["constant", "step", "cosine"] = "constant"  # of the learning rate over rounds
    warmup: int = 0  # rounds in which it rises in a line, before the first one with the whole of it
    milestones: tuple[int, ...] = default((), beside="shape=step")  # after so many rounds each …
    gamma: float = default(0.1, beside="shape=step")  # … it is multiplied with this
    floor: float = default(0.0, beside="shape=cosine")  # the share that it comes down to after the warm-up

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise UserError(f"schedule.warmup must be 0 or more rounds, not {self.warmup}")
        if not all(a < b for a, b in zip((0, *self.milestones), self.milestones, strict=False)):
            raise UserError(
                "schedule.milestones are numbers of rounds from 1 on, in order, such as [50, 75], not "
                f"{list(self.milestones)}"
            )
        if not 0 < self.gamma < math.inf:
            raise UserError(f"schedule.gamma must be a finite number above 0, not {self.gamma}")
        if not 0 <= self.floor <= 1:
            raise UserError(f"schedule.floor is a share of optimizer.lr from 0 to 1, not {self.floor}")

    def check(self, rounds: int) -> None:
        """That it has what its shape needs, in so many rounds."""
        if self.shape == "step" and not self.milestones:
            raise UserError("schedule.shape=step needs schedule.milestones, the rounds after which it steps: [50, 75]")
        if self.concludes and self.warmup >= rounds:
            raise UserError(
                f"schedule.warmup={self.warmup} leaves no round of {rounds} to schedule.shape={self.shape}; set fewer"
            )

    @property
    def concludes(self) -> bool:
        """Whether it depends on how many rounds there are, so that a run cannot be made longer."""
        return self.shape == "cosine"

    def share(self, round: int, rounds: int) -> float:
        """The multiple of the learning rate in a round, counted from 0, of so many.

        What is asked of a round after the last one, as analyses do, is said of the last.
        """
        rising = min(1.0, (round + 1) / (self.warmup + 1))
        if self.shape == "step":
            return rising * self.gamma ** bisect_right(self.milestones, round)
        if self.shape == "cosine" and round >= self.warmup:
            way = (min(round, rounds - 1) - self.warmup) / (rounds - self.warmup)
            return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * way)) / 2
        return rising
