"""An engine whose clients are elsewhere: a job goes out as messages, and comes back as answers.

What an answer must look like is known beforehand (`due`). One that does not, or does not come, costs the round that
client: a line of the log says who and why, and the round goes on with the others if they are enough.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.client_step import Work
from fedbraid.core.round import Job, nothing
from fedbraid.core.tree import PerClient, Tree, stack
from fedbraid.core.update_checks import Ranges
from fedbraid.deploy.audit import record
from fedbraid.deploy.channel import NO_ROUND, Channel
from fedbraid.deploy.client_home import MessageRef
from fedbraid.deploy.masked_replies import MaskedReplies
from fedbraid.deploy.messages import Message, Shapes, digest
from fedbraid.deploy.secure_policy import LEAST, RoundNotCounted, SecurePolicy, new_number
from fedbraid.deploy.update_limits import find_outliers, refused
from fedbraid.engines.replies import Stacked
from fedbraid.storage.client_store import ClientStore

if TYPE_CHECKING:
    from fedbraid.deploy.masked_session import MaskedSession

log = logging.getLogger("fedbraid")

COUNTED = "counted"
"""What the server keeps on every client, as if a strand did: the message whose answer counted last."""


@dataclass(eq=False)
class RoundAnswers:
    """The answers to one question, for those of the cohort who are left."""

    names: list[str]  # of the cohort
    asked: Mapping[str, MessageRef]
    uploads: Mapping[str, Tree]
    work: Work
    needed: int  # without so many the round does not count
    session: MaskedSession | None = None

    @property
    def left(self) -> list[str]:
        return self.session.names if self.session else [name for name in self.names if name in self.uploads]

    @property
    def positions(self) -> np.ndarray:
        here = set(self.left)
        return np.array([position for position, name in enumerate(self.names) if name in here], dtype=np.int64)

    def insist_on_enough(self, count: int) -> None:
        if count < self.needed:
            raise RoundNotCounted(f"{count} of {len(self.names)} clients came, and {self.needed} are needed")


@dataclass(eq=False)
class RemoteEngine:
    """Sends jobs to clients. An engine."""

    channel: Channel
    due: Mapping[str, Shapes]  # the uploads of a probe and of training, for one client
    frozen: Tensor | None  # [D] parameters that are not trained, and do not come back
    store: ClientStore  # of `nothing_counted`
    quorum: int = 0  # answers without which a round does not count; 0 = everybody's
    hidden: frozenset[str] = frozenset()  # uploads that come as sums only
    policy: SecurePolicy = field(default_factory=SecurePolicy)
    within: Ranges = field(default_factory=dict)  # least and most values of uploads
    longest: float = inf  # length of an update
    plain: bool = False  # whether a round needs the plain sum of models beside the weighted one
    kind: Literal["auto"] = "auto"  # clients choose for themselves
    lost: dict[str, str] = field(default_factory=dict)  # by this round so far, and why
    _came: dict[str, RoundAnswers] = field(default_factory=dict)  # in this round, by the kind of question
    _round: int = NO_ROUND

    def begin(self, round: int) -> None:
        """A round, or another try of it. Sums that were learned are kept: they would not be made twice."""
        again = self._came if round == self._round else {}
        self._came = {kind: came for kind, came in again.items() if came.session and came.session.known}
        gone = {name for came in self._came.values() for name in came.names if name not in came.left}
        self.lost, self._round = {name: why for name, why in self.lost.items() if name in gone}, round

    def count(self) -> None:
        """The round counts, and the answers of those who are left with it."""
        came = self._came["train"]
        ids = [self.channel.membership.roster.index(name) for name in came.left]
        digests = [int.from_bytes(bytes.fromhex(came.asked[name].digest), "big", signed=True) for name in came.left]
        kept = {"round": torch.full((len(ids),), self._round), "mark": torch.tensor(digests)}
        self.store.write(ids, {COUNTED: kept})
        self._came = {}

    def run(self, job: Job, meanwhile: Callable[[], None] = nothing) -> Stacked | MaskedReplies:
        """The answers of those who give one. It is an error if they are too few.

        In a round that is gone through again nobody is asked twice.
        """
        if job.kind not in self._came:
            self._came[job.kind] = self._asked(job)
        came = self._came[job.kind]
        positions = came.positions
        here = [{key: t.to(job.model.device) for key, t in came.uploads[name].items()} for name in came.left]
        uploads = stack(here)
        frozen = None if job.kind == "probe" else self.frozen
        if frozen is not None and "model" in uploads:
            uploads["model"] = self._sent(job, positions).masked_scatter(~frozen, uploads["model"])
        everybody = len(positions) == len(came.names)
        left_out = 0 if frozen is None else int(frozen.sum())
        seen = Stacked(uploads, came.work, left_out, None if everybody else positions)
        if came.session is None:
            return seen
        return MaskedReplies(seen, came.session, frozen, self._sent(job, positions))

    def _asked(self, job: Job) -> RoundAnswers:
        names, here = [self.channel.membership.roster[k] for k in job.cohort.ids], self.channel.here()
        like = {key: value for key, value in self.due[job.kind].items() if key in self.hidden}
        shown = {key: value for key, value in self.due[job.kind].items() if key not in like}
        number = new_number() if like else None
        positions = {name: position for position, name in enumerate(names) if name in here}
        messages, asked = self._questions(job, positions, number)
        answers, reasons = self.channel.ask(messages, job.round, shown, _uploads)
        reasons |= self._bad(job, positions, answers)
        answers = {name: answer for name, answer in answers.items() if name not in reasons}
        needed = max(LEAST if like else 1, min(self.quorum or len(names), len(names)))
        uploads = {name: answer.tensors for name, (answer, _) in answers.items()}
        came = RoundAnswers(names, asked, uploads, sum((work for _, work in answers.values()), Work()), needed)
        self._lose(job, {n: reasons.get(n) or self.channel.why_not_here(n) for n in names if n not in answers})
        came.insist_on_enough(len(answers))
        if number is not None:
            came.session = self._open_session(
                job, came, number, {name: answer.payload for name, (answer, _) in answers.items()}
            )
        return came

    def _bad(self, job: Job, positions: Mapping[str, int], answers: dict[str, tuple[Message, Work]]) -> dict[str, str]:
        """Return whose uploads are refused, and why; updates that stick out are logged, cut in `answers`, or refused.

        It happens in the round in which they come, before anything is averaged: a bad update that goes into the model
        would make the honest ones of the next round bad, and the log would blame those.
        """
        uploads = {name: answer.tensors for name, (answer, _) in answers.items()}
        trained = {name: tree["model"] for name, tree in uploads.items() if "model" in tree}
        starts = {name: self._start(job, positions[name]).to(trained[name]) for name in trained}
        reasons = refused(uploads, starts, self.within, self.longest)
        limits = self.channel.membership.limits
        models = {name: model for name, model in trained.items() if name not in reasons}
        for name, outlier in find_outliers(models, starts, limits.outlier_factor).items():
            if limits.on_outlier == "drop":
                reasons[name] = str(outlier)
                continue
            if limits.on_outlier == "clip":
                answer, work = answers[name]
                answers[name] = replace(answer, tensors=answer.tensors | {"model": outlier.shorter}), work
            done = {"warn": "it counts as it is", "clip": "it is shortened"}[limits.on_outlier]
            log.warning("round %d: %s: %s; %s", job.round + 1, name, outlier, done)
        return reasons

    def _start(self, job: Job, position: int) -> Tensor:
        """[D'] the trained parameters of the model that the client at this position was sent."""
        model = job.model[position] if job.model.dim() == 2 else job.model
        return model if self.frozen is None else model[~self.frozen]

    def _open_session(
        self, job: Job, came: RoundAnswers, number: int, payload: Mapping[str, Mapping[str, Any]]
    ) -> MaskedSession:
        """The uploads that stay with their clients, once those have exchanged keys."""
        from fedbraid.deploy.masked_session import MaskedSession, summed_before

        def lose(lost: Mapping[str, str]) -> None:
            self._lose(job, lost)
            came.insist_on_enough(len(session.names))

        like = {key: value for key, value in self.due[job.kind].items() if key in self.hidden}
        session = MaskedSession(
            self.channel, job.round, job.kind, like, came.asked, self.policy, self.plain, lose, list(came.left)
        )
        if before := summed_before({name: about.get("with") for name, about in payload.items()}):
            session.go_on_with(before, "the others' numbers were summed without it before")
        adverts = {name: payload[name].get("advert") for name in session.names}
        session.begin(number, {name: text for name, text in adverts.items() if isinstance(text, str)})
        return session

    def _lose(self, job: Job, lost: Mapping[str, str]) -> None:
        for name, reason in lost.items():
            self.lost[name] = reason
            record("lost", f"round {job.round + 1}: {reason}", client=name)
            log.warning("round %d goes on without %s: %s", job.round + 1, name, reason)

    def prepare(self, seed: int, round: int, ids: Sequence[int]) -> None:
        """Clients plan for themselves."""

    def close(self) -> None:
        """Nothing is held."""

    def _questions(
        self, job: Job, positions: Mapping[str, int], number: int | None
    ) -> tuple[dict[str, bytes], dict[str, MessageRef]]:
        """A message for each client, and what is asked in it; those who are told the same share it."""
        own = job.model.dim() == 2 or any(isinstance(tree, PerClient) for tree in job.sent.values())
        written: dict[Hashable, tuple[bytes, MessageRef]] = {}
        mine: dict[str, tuple[bytes, MessageRef]] = {}
        probe = self._came.get("probe")
        for name, position in positions.items():
            counted, probed = self._counted(job.cohort.ids[position]), probe.asked[name] if probe else None
            key = name if own else (counted, probed)
            if key not in written:
                message = self._question(job, position, counted, probed)
                content = message.to_bytes()
                at = MessageRef(job.round, digest(content))
                if number is not None:
                    content = replace(message, payload={**message.payload, "sum": number}).to_bytes()
                written[key] = content, at
            mine[name] = written[key]
        return {name: content for name, (content, _) in mine.items()}, {name: at for name, (_, at) in mine.items()}

    def _question(self, job: Job, position: int, counted: MessageRef | None, probed: MessageRef | None) -> Message:
        """Return the message to one client of the cohort, without what it has from the probe."""
        own_model, tensors = job.model.dim() == 2, dict[str, Tensor]()
        if "model" not in job.already:
            tensors["model"] = job.model[position] if own_model else job.model
            tensors["buffers"] = job.buffers[position] if own_model else job.buffers
        for strand, tree in job.sent.items():
            if strand not in job.already:
                own = isinstance(tree, PerClient)
                tensors |= {f"{strand}/{key}": value[position] if own else value for key, value in tree.items()}
        membership = self.channel.membership
        payload = {
            "lr": job.lr,
            "seed": job.seed,
            "mean": membership.mean,
            "width": membership.width,
            "counted": counted.to_list() if counted else None,
            "already": sorted(job.already),
            "after": probed.to_list() if probed else None,
        }
        return Message(job.kind, membership.run, job.round, payload, tensors)

    @staticmethod
    def _sent(job: Job, positions: np.ndarray) -> Tensor:
        """[C, D] the models that those at `positions` were sent."""
        return job.only(positions).model.expand(len(positions), -1)

    def _counted(self, number: np.int64) -> MessageRef | None:
        kept = self.store.read([int(number)])[COUNTED]
        round, digest = int(kept["round"][0]), int(kept["mark"][0])
        return None if round == NO_ROUND else MessageRef(round, digest.to_bytes(8, "big", signed=True).hex())


def nothing_counted() -> dict[str, Tree]:
    """Return what the server records of a client whose answers never counted."""
    return {COUNTED: {"round": torch.tensor(NO_ROUND), "mark": torch.tensor(0)}}


def _uploads(answer: Message) -> tuple[Message, Work]:
    return answer, Work(answer.count("forward"), answer.count("backward"))
