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
from fedbraid.deploy.membership import Membership
from fedbraid.deploy.remote_engine import RemoteEngine
from fedbraid.deploy.secure_policy import CohortShrunk, RoundNotCounted
from fedbraid.deploy.secure_policy import describe_policy as describe_policy
from fedbraid.errors import UserError
from fedbraid.training.federation import Federation, Line
from fedbraid.training.model_inputs import Inputs

log = logging.getLogger("fedbraid")

Evaluator = Callable[[Tensor, Tensor, int], Line]
"""(parameters, buffers, round) -> how good the model is."""


@dataclass(frozen=True)
class WaitPolicy:
    """Numbers of clients that a server waits for, and for how long."""

    min_clients: int = 0  # in a round, and at the beginning; 0 = everybody
    seconds: float = 600.0  # for an answer
    tries: int = 10  # of a round
    pause: float = 10.0  # seconds between them

    def __post_init__(self) -> None:
        if self.min_clients < 0 or self.tries < 1 or not self.seconds > 0 or self.pause < 0:
            raise UserError("min_clients and the pause are at least 0, tries at least 1, and seconds above 0")


@dataclass(eq=False)
class RemoteFederation(Federation):
    """A federation whose clients' data are elsewhere."""

    engine: RemoteEngine
    facts: Facts
    evaluator: Evaluator
    waiting: WaitPolicy

    @property
    def membership(self) -> Membership:
        return self.engine.channel.membership

    @property
    def sizes(self) -> np.ndarray:
        return self.membership.known_sizes

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps([self.membership.roster, self.facts.told()]).encode())
        digest.update(self.setup.w.cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def label_table(self) -> None:
        """Nobody tells the server."""

    @property
    def inputs(self) -> Inputs:
        """The model's inputs as far as the server knows them; not the units of a regression's targets."""
        facts = self.facts
        known = Inputs.of(facts.made_up())
        return replace(known, numbers=facts.numbers, mean=facts.mean, std=facts.std, target=())

    def secret(self) -> int:
        return secrets.randbits(64)  # anew for every try: the same noise twice could be taken off

    def release(self) -> int:
        """Written down before anybody is sent the model: a round that is lost with the server is released again."""
        if any(s.hides for s in self.chain):
            self.membership.release()
        return self.released

    @property
    def released(self) -> int:
        return max(self.server.round, self.membership.released)

    @property
    def drawn(self) -> None:
        """Clients know the run's seed, and from it who is in which round."""

    def scored(self) -> Line:
        return self.evaluator(*self.deployed(), self.server.round)

    def gather(self) -> None:
        """Wait until enough clients are there and have been ready."""
        channel, roster = self.engine.channel, self.membership.roster
        if self.engine.hidden:
            log.info(describe_policy(self.chain, self.engine.due, self.config.data.name == BY_CLIENTS))
        needed = self.waiting.min_clients or len(roster)
        reported: tuple[list[str], list[str]] = [], []
        while True:
            channel.handshake_new_clients()
            present = set(channel.transport.present())
            if channel.without_handshake(present):  # who came meanwhile is ready before anybody is told who is missing
                continue
            missing = [name for name in roster if name not in channel.ready.keys() & present]
            if len(roster) - len(missing) >= needed:
                break
            others = sorted(name for name in channel.transport.present() if name not in roster)
            if reported != (missing, others):
                reported = missing, others
                log.info(
                    "%d of %d clients are connected; waiting for %s%s",
                    *(len(roster) - len(missing), needed, _few(missing)),
                    f" ({_few(others)}: not on the roster)" if others else "",
                )
            time.sleep(min(1.0, self.waiting.pause))
        share = self.config.evaluate.validation
        if share and not any(has["validation"] for has in channel.ready.values()):
            raise UserError(
                f"evaluate.validation={share:g} holds out none of the samples of the clients that are here; "
                "set a larger share"
            )
        self.membership.begin(self.config.local.batch)

    def launch(self) -> Line:
        """One round that counts, as often as it takes."""
        for again in range(self.waiting.tries):
            time.sleep(self.waiting.pause if again else 0)
            self.engine.channel.handshake_new_clients()
            self._cohort = Memo()  # with the sizes of those who have come since
            try:
                line = self._launch()
            except RoundNotCounted as few:
                missing = _few(self.engine.lost)
                log.warning("round %d does not count: %s; without %s", self.server.round + 1, few, missing)
                continue
            more = {"missing": dict(self.engine.lost), "repeated": again}
            return lambda: line() | more
        raise UserError(
            f"round {self.server.round + 1} was tried {self.waiting.tries} times without {missing}; "
            "go on with --resume when they are back, or with fewer --min-clients"
        )

    def _launch(self) -> Line:
        """One try. If clients are lost while numbers are summed, it is gone through again with the others' answers."""
        self.engine.begin(self.server.round)
        while True:
            try:
                line = super().launch()
            except CohortShrunk:
                continue
            self.engine.count()
            return line


def _few(names: Sequence[str] | Mapping[str, str], most: int = 10) -> str:
    """Names, and why they are missing where that is known."""
    words = [f"{n} ({why})" for n, why in names.items()] if isinstance(names, Mapping) else list(names)
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
