"""What an engine is: who trains the clients of a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from fedbraid.core.round import Job, nothing
from fedbraid.engines.replies import Answers


class Engine(Protocol):
    """Trains the clients, and calls `meanwhile` if its host has time while they train."""

    @property
    def kind(self) -> Literal["auto", "stack", "loop", "compiled", "ray"]: ...

    def run(self, job: Job, meanwhile: Callable[[], None] = nothing) -> Answers: ...

    def prepare(self, seed: int, round: int, ids: Sequence[int]) -> None:
        """Plan a round that comes next, while the present one goes on."""
        ...

    def close(self) -> None:
        """No more jobs come: let go of what was held for them."""
        ...
