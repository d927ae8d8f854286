"""An engine whose clients are elsewhere: a job goes out as letters, and comes back as answers.

What an answer must look like is known beforehand (`due`). One that does not, or does not come, costs the round that
client: a line of the log says who and why, and the round goes on with the others if they are enough.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.local import Work
from fedbraid.core.round import Job, nothing
from fedbraid.core.tree import PerClient, Tree, stack
from fedbraid.engines.replies import Stacked
from fedbraid.federation.home import At
from fedbraid.federation.letters import Letter, Shapes, mark
from fedbraid.federation.mail import NO_ROUND, Mail
from fedbraid.store import ClientStore

log = logging.getLogger("fedbraid")

COUNTED = "counted"
"""What the server keeps on every client, as if a strand did: the letter whose answer counted last."""


class TooFew(Exception):
    """A round that does not count."""


@dataclass(eq=False)
class Post:
    """Sends jobs to clients. An engine."""

    mail: Mail
    due: Mapping[str, Shapes]  # the uploads of a probe and of training, for one client
    frozen: Tensor | None  # [D] parameters that are not trained, and do not come back
    store: ClientStore  # of `nothing_counted`
    quorum: int = 0  # answers without which a round does not count; 0 = everybody's
    kind: Literal["auto"] = "auto"  # clients choose for themselves
    lost: dict[str, str] = field(default_factory=dict)  # by this round so far, and why
    _probed: dict[str, At] = field(default_factory=dict)  # the letters by which this round's clients were probed

    def run(self, job: Job, meanwhile: Callable[[], None] = nothing) -> Stacked:
        """The answers of those who give one. It is an error if they are too few."""
        if not job.already:  # the first question of a round
            self.lost, self._probed = {}, {}
        names, here = [self.mail.register.roster[k] for k in job.cohort.ids], self.mail.here()
        letters = self._questions(job, {name: place for place, name in enumerate(names) if name in here})
        answers, refused = self.mail.ask(letters, job.round, self.due[job.kind], _uploads)
        for name in names:
            if name not in answers:
                self.lost[name] = refused.get(name) or self.mail.why_not_here(name)
                log.warning("round %d goes on without %s: %s", job.round + 1, name, self.lost[name])
        needed = max(1, min(self.quorum or len(names), len(names)))
        if len(answers) < needed:
            raise TooFew(f"{len(answers)} of {len(names)} clients came, and {needed} are needed")
        asked = {name: At(job.round, mark(letters[name])) for name in answers}
        came = np.array([place for place, name in enumerate(names) if name in answers])
        if job.kind == "probe":
            self._probed = asked
        else:
            self._count(job.cohort.ids[came], [asked[names[k]] for k in came])
        uploads = stack([self._whole(answers[names[k]][0], job, k) for k in came])
        work = sum((work for _, work in answers.values()), Work())
        frozen = 0 if self.frozen is None or job.kind == "probe" else int(self.frozen.sum())
        return Stacked(uploads, work, frozen, None if len(came) == len(names) else came)

    def prepare(self, seed: int, round: int, ids: Sequence[int]) -> None:
        """Clients plan for themselves."""

    def close(self) -> None:
        """Nothing is held."""

    def _questions(self, job: Job, places: Mapping[str, int]) -> dict[str, bytes]:
        """A letter for each client; those who are told the same share it."""
        own = job.model.dim() == 2 or any(isinstance(tree, PerClient) for tree in job.sent.values())
        letters: dict[Hashable, bytes] = {}
        mine: dict[str, bytes] = {}
        for name, place in places.items():
            counted, probed = self._counted(job.cohort.ids[place]), self._probed.get(name)
            key = name if own else (counted, probed)
            if key not in letters:
                letters[key] = self._question(job, place, counted, probed)
            mine[name] = letters[key]
        return mine

    def _question(self, job: Job, place: int, counted: At | None, probed: At | None) -> bytes:
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
        return Letter(job.kind, register.run, job.round, told, tensors).written()

    def _whole(self, uploads: Tree, job: Job, place: np.int64) -> Tree:
        """A client's uploads on the server's device, its model with the parameters that did not travel."""
        here = {key: value.to(job.model.device) for key, value in uploads.items()}
        if self.frozen is None or job.kind == "probe":
            return here
        sent = job.model[place] if job.model.dim() == 2 else job.model
        return here | {"model": sent.masked_scatter(~self.frozen, here["model"])}

    def _counted(self, number: np.int64) -> At | None:
        kept = self.store.read([int(number)])[COUNTED]
        round, mark = int(kept["round"][0]), int(kept["mark"][0])
        return None if round == NO_ROUND else At(round, mark.to_bytes(8, "big", signed=True).hex())

    def _count(self, ids: Iterable[np.int64], letters: Sequence[At]) -> None:
        marks = [int.from_bytes(bytes.fromhex(at.mark), "big", signed=True) for at in letters]
        kept = {"round": torch.tensor([at.round for at in letters]), "mark": torch.tensor(marks)}
        self.store.write([int(k) for k in ids], {COUNTED: kept})


def nothing_counted() -> dict[str, Tree]:
    """What the server keeps on a client whose answers never counted."""
    return {COUNTED: {"round": torch.tensor(NO_ROUND), "mark": torch.tensor(0)}}


def _uploads(answer: Letter) -> tuple[Tree, Work]:
    return answer.tensors, Work(answer.count("forward"), answer.count("backward"))
