"""The engine protocol: an engine trains the clients of a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from fedbraid.core.round import Job, nothing
from fedbraid.engines.replies import Answers


class Engine(Protocol):
    """Trains the clients of a job; calls `meanwhile` when the host is idle during training."""

    @property
    def kind(self) -> Literal["auto", "stack", "loop", "compiled", "ray"]: ...

    def run(self, job: Job, meanwhile: Callable[[], None] = nothing) -> Answers: ...

    def prepare(self, seed: int, round: int, ids: Sequence[int]) -> None:
        """Plan the next round while the current one is running."""
        ...

    def close(self) -> None:
        """Release everything that was held for further jobs."""
        ...
