"""A federation whose clients' data are elsewhere, round by round.

A round that too few clients come back from does not count, and is tried again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from torch import Tensor

from fedbraid.core.memo import Memo
from fedbraid.data.sample_facts import BY_CLIENTS, Facts
from fedbraid.deploy.post import Post
from fedbraid.deploy.register import Register
from fedbraid.deploy.secrecy import Fewer, TooFew
from fedbraid.deploy.secrecy import told as secret_and_open
from fedbraid.errors import UserError
from fedbraid.training.federation import Federation, Line
from fedbraid.training.model_inputs import Inputs

log = logging.getLogger("fedbraid")

Judge = Callable[[Tensor, Tensor, int], Line]
"""(parameters, buffers, round) -> how good the model is."""


@dataclass(frozen=True)
class Patience:
    """What a server waits for, and for how long."""

    min_clients: int = 0  # in a round, and at the beginning; 0 = everybody
    seconds: float = 600.0  # for an answer
    tries: int = 10  # of a round
    pause: float = 10.0  # seconds between them

    def __post_init__(self) -> None:
        if self.min_clients < 0 or self.tries < 1 or not self.seconds > 0 or self.pause < 0:
            raise UserError("min_clients and the pause are at least 0, tries at least 1, and seconds above 0")


@dataclass(eq=False)
class Remote(Federation):
    """A federation whose clients' data are elsewhere."""

    engine: Post
    facts: Facts
    judge: Judge
    patience: Patience

    @property
    def register(self) -> Register:
        return self.engine.mail.register

    @property
    def sizes(self) -> np.ndarray:
        return self.register.known_sizes

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps([self.register.roster, self.facts.told()]).encode())
        digest.update(self.setup.w.cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def label_table(self) -> None:
        """Nobody tells the server."""

    @property
    def inputs(self) -> Inputs:
        """What the server knows of it. In which units clients gave the targets of a regression, it was not told."""
        facts = self.facts
        known = Inputs.of(facts.made_up())
        return replace(known, numbers=facts.numbers, mean=facts.mean, std=facts.std, target=())

    def secret(self) -> int:
        return secrets.randbits(64)  # anew for every try: the same noise twice could be taken off

    def release(self) -> int:
        """Written down before anybody is sent the model: a round that is lost with the server is released again."""
        if any(s.hides for s in self.chain):
            self.register.release()
        return self.released

    @property
    def released(self) -> int:
        return max(self.server.round, self.register.released)

    @property
    def drawn(self) -> None:
        """Clients know the run's seed, and from it who is in which round."""

    def scored(self) -> Line:
        return self.judge(*self.deployed(), self.server.round)

    def gather(self) -> None:
        """Wait until enough clients are there and have been greeted."""
        mail, roster = self.engine.mail, self.register.roster
        if self.engine.hidden:
            log.info(secret_and_open(self.chain, self.engine.due, self.config.data.name == BY_CLIENTS))
        needed = self.patience.min_clients or len(roster)
        told: tuple[list[str], list[str]] = [], []
        while True:
            mail.greet_newcomers()
            present = set(mail.transport.present())
            if mail.unheard(present):  # who came meanwhile is greeted before anybody is told who is missing
                continue
            missing = [name for name in roster if name not in mail.greeted.keys() & present]
            if len(roster) - len(missing) >= needed:
                break
            others = sorted(name for name in mail.transport.present() if name not in roster)
            if told != (missing, others):
                told = missing, others
                log.info(
                    "%d of %d clients are here; waiting for %s%s",
                    *(len(roster) - len(missing), needed, _few(missing)),
                    f" ({_few(others)}: not on the roster)" if others else "",
                )
            time.sleep(min(1.0, self.patience.pause))
        share = self.config.evaluate.validation
        if share and not any(has["validation"] for has in mail.greeted.values()):
            raise UserError(
                f"evaluate.validation={share:g} holds out none of the samples of the clients that are here; "
                "set a larger share"
            )
        self.register.begin(self.config.local.batch)

    def launch(self) -> Line:
        """One round that counts, as often as it takes."""
        for again in range(self.patience.tries):
            time.sleep(self.patience.pause if again else 0)
            self.engine.mail.greet_newcomers()
            self._cohort = Memo()  # with the sizes of those who have come since
            try:
                line = self._launch()
            except TooFew as few:
                missing = _few(self.engine.lost)
                log.warning("round %d does not count: %s; without %s", self.server.round + 1, few, missing)
                continue
            more = {"missing": dict(self.engine.lost), "repeated": again}
            return lambda: line() | more
        raise UserError(
            f"round {self.server.round + 1} was tried {self.patience.tries} times without {missing}; "
            "go on with --resume when they are back, or with fewer --min-clients"
        )

    def _launch(self) -> Line:
        """One try. If clients are lost while numbers are summed, it is gone through again with the others' answers."""
        self.engine.begin(self.server.round)
        while True:
            try:
                line = super().launch()
            except Fewer:
                continue
            self.engine.count()
            return line


def _few(names: Sequence[str] | Mapping[str, str], most: int = 10) -> str:
    """Names, and why they are missing where that is known."""
    words = [f"{n} ({why})" for n, why in names.items()] if isinstance(names, Mapping) else list(names)
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
