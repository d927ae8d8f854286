"""An engine whose clients are elsewhere: a job goes out as letters, and comes back as answers.

What an answer must look like is known beforehand (`due`). One that does not, or does not come, costs the round that
client: a line of the log says who and why, and the round goes on with the others if they are enough.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.client_step import Work
from fedbraid.core.round import Job, nothing
from fedbraid.core.tree import PerClient, Tree, stack
from fedbraid.deploy.home import At
from fedbraid.deploy.letters import Letter, Shapes, mark
from fedbraid.deploy.mail import NO_ROUND, Mail
from fedbraid.deploy.secrecy import LEAST, Secrecy, TooFew, new_number
from fedbraid.deploy.veiled import Veiled
from fedbraid.engines.replies import Stacked
from fedbraid.storage.client_store import ClientStore

if TYPE_CHECKING:
    from fedbraid.deploy.veil import Veil

log = logging.getLogger("fedbraid")

COUNTED = "counted"
"""What the server keeps on every client, as if a strand did: the letter whose answer counted last."""


@dataclass(eq=False)
class Came:
    """The answers to one question, for those of the cohort who are left."""

    names: list[str]  # of the cohort
    asked: Mapping[str, At]
    uploads: Mapping[str, Tree]
    work: Work
    needed: int  # without so many the round does not count
    veil: Veil | None = None

    @property
    def left(self) -> list[str]:
        return self.veil.names if self.veil else [name for name in self.names if name in self.uploads]

    @property
    def places(self) -> np.ndarray:
        here = set(self.left)
        return np.array([place for place, name in enumerate(self.names) if name in here], dtype=np.int64)

    def insist_on_enough(self, count: int) -> None:
        if count < self.needed:
            raise TooFew(f"{count} of {len(self.names)} clients came, and {self.needed} are needed")


@dataclass(eq=False)
class Post:
    """Sends jobs to clients. An engine."""

    mail: Mail
    due: Mapping[str, Shapes]  # the uploads of a probe and of training, for one client
    frozen: Tensor | None  # [D] parameters that are not trained, and do not come back
    store: ClientStore  # of `nothing_counted`
    quorum: int = 0  # answers without which a round does not count; 0 = everybody's
    hidden: frozenset[str] = frozenset()  # uploads that come as sums only
    secrecy: Secrecy = field(default_factory=Secrecy)
    plain: bool = False  # whether a round needs the plain sum of models beside the weighted one
    kind: Literal["auto"] = "auto"  # clients choose for themselves
    lost: dict[str, str] = field(default_factory=dict)  # by this round so far, and why
    _came: dict[str, Came] = field(default_factory=dict)  # in this round, by the kind of question
    _round: int = NO_ROUND

    def begin(self, round: int) -> None:
        """A round, or another try of it. Sums that were learned are kept: they would not be made twice."""
        again = self._came if round == self._round else {}
        self._came = {kind: came for kind, came in again.items() if came.veil and came.veil.known}
        gone = {name for came in self._came.values() for name in came.names if name not in came.left}
        self.lost, self._round = {name: why for name, why in self.lost.items() if name in gone}, round

    def count(self) -> None:
        """The round counts, and the answers of those who are left with it."""
        came = self._came["train"]
        ids = [self.mail.register.roster.index(name) for name in came.left]
        marks = [int.from_bytes(bytes.fromhex(came.asked[name].mark), "big", signed=True) for name in came.left]
        kept = {"round": torch.full((len(ids),), self._round), "mark": torch.tensor(marks)}
        self.store.write(ids, {COUNTED: kept})
        self._came = {}

    def run(self, job: Job, meanwhile: Callable[[], None] = nothing) -> Stacked | Veiled:
        """The answers of those who give one. It is an error if they are too few.

        In a round that is gone through again nobody is asked twice.
        """
        if job.kind not in self._came:
            self._came[job.kind] = self._asked(job)
        came = self._came[job.kind]
        places = came.places
        here = [{key: t.to(job.model.device) for key, t in came.uploads[name].items()} for name in came.left]
        uploads = stack(here)
        frozen = None if job.kind == "probe" else self.frozen
        if frozen is not None and "model" in uploads:
            uploads["model"] = self._sent(job, places).masked_scatter(~frozen, uploads["model"])
        everybody = len(places) == len(came.names)
        left_out = 0 if frozen is None else int(frozen.sum())
        seen = Stacked(uploads, came.work, left_out, None if everybody else places)
        if came.veil is None:
            return seen
        return Veiled(seen, came.veil, frozen, self._sent(job, places))

    def _asked(self, job: Job) -> Came:
        names, here = [self.mail.register.roster[k] for k in job.cohort.ids], self.mail.here()
        like = {key: value for key, value in self.due[job.kind].items() if key in self.hidden}
        shown = {key: value for key, value in self.due[job.kind].items() if key not in like}
        number = new_number() if like else None
        places = {name: place for place, name in enumerate(names) if name in here}
        letters, asked = self._questions(job, places, number)
        answers, refused = self.mail.ask(letters, job.round, shown, _uploads)
        needed = max(LEAST if like else 1, min(self.quorum or len(names), len(names)))
        uploads = {name: answer.tensors for name, (answer, _) in answers.items()}
        came = Came(names, asked, uploads, sum((work for _, work in answers.values()), Work()), needed)
        self._lose(job, {n: refused.get(n) or self.mail.why_not_here(n) for n in names if n not in answers})
        came.insist_on_enough(len(answers))
        if number is not None:
            came.veil = self._veiled(job, came, number, {name: answer.told for name, (answer, _) in answers.items()})
        return came

    def _veiled(self, job: Job, came: Came, number: int, told: Mapping[str, Mapping[str, Any]]) -> Veil:
        """The uploads that stay with their clients, once those have exchanged keys."""
        from fedbraid.deploy.veil import Veil, summed_before

        def lose(lost: Mapping[str, str]) -> None:
            self._lose(job, lost)
            came.insist_on_enough(len(veil.names))

        like = {key: value for key, value in self.due[job.kind].items() if key in self.hidden}
        veil = Veil(self.mail, job.round, job.kind, like, came.asked, self.secrecy, self.plain, lose, list(came.left))
        if before := summed_before({name: about.get("with") for name, about in told.items()}):
            veil.go_on_with(before, "the others' numbers were summed without it before")
        adverts = {name: told[name].get("advert") for name in veil.names}
        veil.begin(number, {name: text for name, text in adverts.items() if isinstance(text, str)})
        return veil

    def _lose(self, job: Job, lost: Mapping[str, str]) -> None:
        for name, reason in lost.items():
            self.lost[name] = reason
            log.warning("round %d goes on without %s: %s", job.round + 1, name, reason)

    def prepare(self, seed: int, round: int, ids: Sequence[int]) -> None:
        """Clients plan for themselves."""

    def close(self) -> None:
        """Nothing is held."""

    def _questions(
        self, job: Job, places: Mapping[str, int], number: int | None
    ) -> tuple[dict[str, bytes], dict[str, At]]:
        """A letter for each client, and what is asked in it; those who are told the same share it."""
        own = job.model.dim() == 2 or any(isinstance(tree, PerClient) for tree in job.sent.values())
        written: dict[Hashable, tuple[bytes, At]] = {}
        mine: dict[str, tuple[bytes, At]] = {}
        probe = self._came.get("probe")
        for name, place in places.items():
            counted, probed = self._counted(job.cohort.ids[place]), probe.asked[name] if probe else None
            key = name if own else (counted, probed)
            if key not in written:
                letter = self._question(job, place, counted, probed)
                content = letter.written()
                at = At(job.round, mark(content))
                if number is not None:
                    content = replace(letter, told={**letter.told, "sum": number}).written()
                written[key] = content, at
            mine[name] = written[key]
        return {name: content for name, (content, _) in mine.items()}, {name: at for name, (_, at) in mine.items()}

    def _question(self, job: Job, place: int, counted: At | None, probed: At | None) -> Letter:
        """What one client of the cohort is asked, without what it has from the probe."""
        own_model, tensors = job.model.dim() == 2, dict[str, Tensor]()
        if "model" not in job.already:
            tensors["model"] = job.model[place] if own_model else job.model
            tensors["buffers"] = job.buffers[place] if own_model else job.buffers
        for strand, tree in job.sent.items():
            if strand not in job.already:
                own = isinstance(tree, PerClient)
                tensors |= {f"{strand}/{key}": value[place] if own else value for key, value in tree.items()}
        register = self.mail.register
        told = {
            "lr": job.lr,
            "seed": job.seed,
            "mean": register.mean,
            "width": register.width,
            "counted": counted.told() if counted else None,
            "already": sorted(job.already),
            "after": probed.told() if probed else None,
        }
        return Letter(job.kind, register.run, job.round, told, tensors)

    @staticmethod
    def _sent(job: Job, places: np.ndarray) -> Tensor:
        """[C, D] the models that those at `places` were sent."""
        return job.only(places).model.expand(len(places), -1)

    def _counted(self, number: np.int64) -> At | None:
        kept = self.store.read([int(number)])[COUNTED]
        round, mark = int(kept["round"][0]), int(kept["mark"][0])
        return None if round == NO_ROUND else At(round, mark.to_bytes(8, "big", signed=True).hex())


def nothing_counted() -> dict[str, Tree]:
    """What the server keeps on a client whose answers never counted."""
    return {COUNTED: {"round": torch.tensor(NO_ROUND), "mark": torch.tensor(0)}}


def _uploads(answer: Letter) -> tuple[Letter, Work]:
    return answer, Work(answer.count("forward"), answer.count("backward"))
