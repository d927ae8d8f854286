"""The workers of a cluster: those that are here, those that are still to come, and replacements for the lost.

How workers are started and called is `Remote`'s; `engines/ray_remote.py` does it with Ray.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

import torch

from fedbraid.engines.ray.worker import Facts
from fedbraid.errors import UserError
from fedbraid.version import __version__

log = logging.getLogger("fedbraid")

GRACE = 15.0
"""Seconds that a replacement is waited for while others could take over."""
SOON = 1e-3
"""Seconds that are as good as none."""
TRIES = 10
"""Workers that may fail one after the other before they are here."""


class Lost(Exception):
    """A worker, or what it had made, is no more."""


class Remote(Protocol):
    """What is used of a cluster's software. A reference stands for what a call will have made."""

    def room(self) -> int:
        """How many workers there is room for now."""
        ...

    def start(self) -> Any: ...

    def stop(self, worker: Any) -> None: ...

    def call(self, worker: Any, method: str, *args: Any) -> Any:
        """Asks a worker, which answers one call after the other; returns a reference. References are valid args."""
        ...

    def put(self, value: Any, own: Sequence[type] = ()) -> Any:
        """A reference to `value`, for many calls. Workers need not have the code of the user's `own` classes."""
        ...

    def get(self, reference: Any) -> Any:
        """What it refers to, once it is there. Raises Lost, or the mistake that the call ended in."""
        ...

    def ready(self, references: Sequence[Any], seconds: float) -> list[Any]:
        """Those that are there: waits for the first, but no longer than this."""
        ...


@dataclass(eq=False)
class Hand:
    """One worker, as the driver knows it."""

    worker: Any
    hello: Any  # the reference to its first answer
    facts: Facts | None = None  # once it is here
    cost: float = 0.0  # samples that it was measured with, the latest count most …
    seconds: float = 0.0  # … and how long they took

    def measured(self, cost: float, seconds: float) -> None:
        self.cost, self.seconds = FORGET * self.cost + cost, FORGET * self.seconds + seconds

    def __str__(self) -> str:
        return f"{self.facts.host}, process {self.facts.process}" if self.facts else "a worker that never came"


FORGET = 0.8
"""How much of what was measured still counts a round later."""


@dataclass(eq=False)
class Crew:
    """As many workers as are wanted, or as there is room for (0)."""

    remote: Remote
    wanted: int = 0
    patience: float = 300.0  # seconds that the first workers, and missing ones, are waited for
    here: list[Hand] = field(default_factory=list)
    coming: list[Hand] = field(default_factory=list)
    failed: int = 0  # workers that were lost before they came, one after the other
    users: int = 0

    def gather(self, most: int) -> None:
        """The first time everybody, but no more than this; afterwards, whoever has come in the meantime."""
        if self.here or self.coming:
            self._welcome(SOON)
            return
        self.wanted = min(self.wanted or self.remote.room(), most)
        self.coming = [self._recruit() for _ in range(self.wanted)]
        until = monotonic() + self.patience
        while self.coming and (left := until - monotonic()) > 0:
            self._welcome(left)
        self._check_any()
        hosts = {hand.facts.host for hand in self.here if hand.facts}
        log.info("workers: %d, on machines: %d", len(self.here), len(hosts))
        if self.coming:
            log.warning("%d others have not come yet; the run begins without", len(self.coming))

    def wait_for_others(self, taken: Counter[Hand], shares: int) -> None:
        """Until there are as many workers without a share as there are `shares` to give, if they come soon."""
        until = monotonic() + GRACE
        while self.coming and self._idle(taken) < shares and (left := until - monotonic()) > 0:
            self._welcome(left)

    def wait_for_any(self) -> None:
        until = monotonic() + self.patience
        while self.coming and not self.here and (left := until - monotonic()) > 0:
            self._welcome(left)
        self._check_any()

    def able(self, taken: Counter[Hand]) -> Hand:
        """Who has the fewest shares."""
        return min(self.here, key=taken.__getitem__)

    def _idle(self, taken: Counter[Hand]) -> int:
        return sum(hand not in taken for hand in self.here)

    def replace(self, lost: Hand) -> None:
        """Call for another worker in the place of one that is lost."""
        if lost in self.here:
            log.warning("a worker is lost (%s); its clients go on elsewhere", lost)
            self.here.remove(lost)
            self.remote.stop(lost.worker)
            self.coming.append(self._recruit())

    def get(self, reference: Any) -> Any:
        return self.remote.get(reference)

    def call(self, hand: Hand, method: str, *args: Any) -> Any:
        return self.remote.call(hand.worker, method, *args)

    def leave(self) -> None:
        """One user fewer; workers go with the last one."""
        self.users -= 1
        if self.users == 0:
            for hand in (*self.here, *self.coming):
                self.remote.stop(hand.worker)
            self.here.clear()
            self.coming.clear()

    def _recruit(self) -> Hand:
        worker = self.remote.start()
        return Hand(worker, self.remote.call(worker, "hello"))

    def _welcome(self, seconds: float) -> None:
        """Those who have come; waits for the first of them, but no longer than this."""
        if not self.coming:
            return
        ready = self.remote.ready([hand.hello for hand in self.coming], seconds)
        for hand in [hand for hand in self.coming if hand.hello in ready]:
            self.coming.remove(hand)
            try:
                hand.facts = self.remote.get(hand.hello)
            except Lost as loss:
                self.failed += 1
                if self.failed > TRIES:
                    raise UserError(f"workers are lost as soon as they start, the last one to this: {loss}") from None
                self.coming.append(self._recruit())
                continue
            _check_same(hand.facts)
            self.failed = 0
            self.here.append(hand)

    def _check_any(self) -> None:
        if not self.here:
            raise UserError(
                f"no worker of the cluster came within {self.patience:g} s; look at `ray status`, ask for less per "
                "worker, or set engine.patience higher; a run that was recorded goes on with --resume"
            )


def _check_same(facts: Facts) -> None:
    for name, here, there in (("fedbraid", __version__, facts.fedbraid), ("torch", torch.__version__, facts.torch)):
        if here.split("+")[0] != there.split("+")[0]:
            raise UserError(f"{facts.host} has {name} {there} and the driver has {here}; install the same everywhere")
