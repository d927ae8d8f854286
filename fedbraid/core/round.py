"""The round, sans IO: a generator that yields jobs for clients and receives their replies.

It knows nothing of devices, processes or networks. An engine is anything with `run(job) -> Replies`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.chain import Chain
from fedbraid.core.constraints import STEP_ALONE
from fedbraid.core.strand import Cohort, Replies, Round, Setup, Strand
from fedbraid.core.tree import Ask, PerClient, Tree, nbytes, rows
from fedbraid.errors import UserError


@dataclass(frozen=True, eq=False)
class Server:
    """The federation between two rounds, as the server holds it."""

    w: Tensor  # [D]
    buffers: Tensor  # [Db]
    kept: dict[str, Tree]  # what each strand keeps
    round: int = 0  # rounds finished
    summed: tuple[Tensor, Tensor, Tensor] | None = None  # the last round's Σ p_k w_k, Σ p_k and mean buffers
    shared: dict[str, Tensor] = field(default_factory=dict)  # what the shares sum to that each hook gave in it

    @property
    def cohort_mean(self) -> tuple[Tensor, Tensor] | None:
        """The last round's mean model and buffers."""
        if self.summed is None:
            return None
        added, total, buffers = self.summed
        return added / total, buffers

    def deployed(self, chain: Chain, setup: Setup) -> Tensor:
        """The model to evaluate and hand out."""
        w = self.w
        for strand in chain.using("deploy"):
            w = strand.deploy(w, self.kept[strand.name], setup)
        return w


@dataclass(frozen=True, eq=False)
class Sealed:
    """Replies that have become a step, and are nothing else any more."""

    came: np.ndarray | None = None

    def each(self, key: str) -> Tensor:
        raise UserError(f"the server's strands see the noisy step and no more, but one asks for {key}; leave it out")

    def sum(self, key: str, weights: Tensor) -> Tensor:
        return self.each(key)


@dataclass(frozen=True, eq=False)
class Job:
    """What a cohort is asked to do."""

    kind: Literal["train", "probe"]
    round: int
    cohort: Cohort
    model: Tensor  # [D], or [C, D] where every client gets a model of its own
    buffers: Tensor  # likewise
    sent: dict[str, Tree | PerClient]
    lr: float
    seed: int
    already: frozenset[str] = frozenset()  # "model" and strands whose payload the clients have from the probe

    def only(self, places: np.ndarray) -> Job:
        """The same for those at `places` of the cohort."""
        at = torch.as_tensor(places, device=self.model.device)
        own_model = self.model.dim() == 2
        return replace(
            self,
            cohort=self.cohort.only(places),
            model=self.model[at] if own_model else self.model,
            buffers=self.buffers[at] if own_model else self.buffers,
            sent={s: PerClient(rows(t, at)) if isinstance(t, PerClient) else t for s, t in self.sent.items()},
        )

    @property
    def bytes_down(self) -> int:
        """What the server sends to the whole cohort."""
        clients = len(self.cohort)
        total = 0
        if "model" not in self.already:
            total += nbytes({"w": self.model, "b": self.buffers}) * (clients if self.model.dim() == 1 else 1)
        for strand, tree in self.sent.items():
            if strand not in self.already:
                total += nbytes(tree) * (1 if isinstance(tree, PerClient) else clients)
        return total


def nothing() -> None:
    """All that there is to do meanwhile."""


def begin(chain: Chain, setup: Setup) -> Server:
    """The server before the first round."""
    return Server(setup.w, setup.buffers, {s.name: s.init_server(setup) for s in chain.using("init_server")})


def one_round(
    chain: Chain, lr: float, setup: Setup, server: Server, cohort: Cohort, seed: int, secret: int = 0
) -> Generator[Job, Replies | None, Server]:
    """One round, with its learning rate: send, probe if asked, train, weigh, average, step.

    Clients that are lost on the way count no further; where nobody replies (None) the server stays as it is. `secret`
    is mixed into noise that hides clients' data, so that who knows the seed cannot take it off again.
    """

    def seen(strand: Strand) -> Round:
        own = seed ^ secret if strand.hides else seed
        return replace(view, strand=strand.name, state=kept.get(strand.name, {}), seed=own)

    kept = dict(server.kept)
    view = Round("", server.round, server.w, {}, cohort, setup, lr, seed, sent=server.w)
    model, buffers, sent, asking = _sent(chain, seen, server)
    view = replace(view, sent=model)
    job = Job("probe", server.round, cohort, model, buffers, sent, lr, seed)
    if asking:
        replies = yield job
        if replies is None:
            return replace(server, round=server.round + 1)
        if replies.came is not None:  # who does not answer is not asked to train
            job = job.only(replies.came)
        view = replace(view, cohort=job.cohort, sent=job.model, replies=replies)
        sent = job.sent | {s.name: _answered(s, seen(s)) for s in asking}
        job = replace(job, sent=sent, already=frozenset({"model", *sent} - {s.name for s in asking}))
    replies = yield replace(job, kind="train")
    if replies is None:
        return replace(server, round=server.round + 1)
    if replies.came is not None:
        job = job.only(replies.came)
    view = replace(view, cohort=job.cohort, sent=job.model, replies=replies)

    shares, weights, shared = _weighed(chain, seen, view)
    view = replace(view, shares=shares, weights=weights)
    mean_buffers = None
    if aggregator := chain.aggregator:
        added, mean_buffers, kept[aggregator.name] = _aggregated(aggregator, seen(aggregator), job.buffers)
        total = weights.new_ones(())
    else:
        added, total = _added(replies, weights), weights.sum(0)
    step = torch.addcmul(added, total, server.w, value=-1)  # Σ p_k (w_k − x)
    # What rounding leaves of parameters that nobody trains would tell how many came.
    delta: Tensor | None = step if setup.frozen is None else step.masked_fill(setup.frozen, 0.0)
    if STEP_ALONE in chain.needs:
        view = replace(view, replies=Sealed())
    for s in chain.using("absorb"):
        kept[s.name] = s.absorb(seen(s))
    for s in chain.using("update"):
        assert delta is not None
        delta, kept[s.name] = s.update(delta, seen(s))
        if delta is None:
            break
    if mean_buffers is None:
        mean_buffers = replies.sum("buffers", shares / shares.sum())
    after = Server(server.w, server.buffers, kept, server.round + 1, (added, total, mean_buffers), shared)
    return after if delta is None else replace(after, w=server.w + delta, buffers=mean_buffers)


def _sent(
    chain: Chain, seen: Callable[[Strand], Round], server: Server
) -> tuple[Tensor, Tensor, dict[str, Tree | PerClient], list[Strand]]:
    """The model and buffers that clients are sent, what strands send beside them, and the strands that ask first."""
    model, buffers = server.w, server.buffers
    sent: dict[str, Tree | PerClient] = {}
    asking = []
    for s in chain.using("send"):
        payload = s.send(seen(s))
        if isinstance(payload, Ask):
            asking.append(s)
            payload = payload.payload
        if "model" in payload and model is not server.w:
            raise UserError(f"{s.name} and another strand both choose the model that is sent; keep one of them")
        model, buffers = payload.get("model", model), payload.get("buffers", buffers)
        sent[s.name] = type(payload)({k: v for k, v in payload.items() if k not in ("model", "buffers")})
    return model, buffers, sent, asking


def _answered(strand: Strand, r: Round) -> Tree | PerClient:
    """What a strand sends once it has clients' answers."""
    payload = strand.send(r)
    if isinstance(payload, Ask):
        raise UserError(f"send of {strand.name} asks again when clients have answered; a round has one exchange first")
    return payload


def _weighed(chain: Chain, seen: Callable[[Strand], Round], view: Round) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """[C] what each model counts in the mean, [C] what each update counts, and what the shares of each hook sum to."""
    n = view.cohort.sizes / view.cohort.sizes.sum()
    shares = view.ones / len(view.cohort) if chain.averages == "uniform" else n
    shared: dict[str, Tensor] = {}
    for s in chain.using("weigh"):
        shares = s.weigh(n if s is chain.sets_weights else shares, seen(s))
        shared[f"weigh of {s.name}"] = shares.sum()
    weights = shares
    for s in chain.using("rescale"):
        weights = s.rescale(weights, seen(s))
    return shares, weights, shared


def _added(replies: Replies, weights: Tensor) -> Tensor:
    """[D] Σ p_k w_k, for a weight of each client [C] or of each of its parameters [C, D]."""
    return replies.sum("model", weights) if weights.dim() == 1 else (weights * replies.each("model")).sum(0)


def _aggregated(strand: Strand, r: Round, buffers: Tensor) -> tuple[Tensor, Tensor, Tree]:
    """[D] the model and [Db] the buffers that an aggregator makes of all updates, and the state that it keeps.

    Buffers are in the updates: a plain mean of them would leave a bad client a way into the model.
    """
    assert r.replies is not None
    if r.sent.dim() == 2:
        raise UserError(f"{strand.name} aggregates updates of one model, and another strand sends each client its own")
    received = torch.cat([r.sent, buffers])
    updates = torch.cat([r.models, r.replies.each("buffers")], 1) - received
    moved, state = strand.aggregate(updates, r)
    after = received + moved
    return after[: len(r.sent)], after[len(r.sent) :], state


OFF = 1e-4
"""How far a sum of shares may be from 1, by rounding."""


def refuse_no_mean(shared: Mapping[str, float]) -> None:
    """Refuse shares, by the hook that gave them, whose sum would act as a learning rate of the server's.

    Apart from the round, because looking at a number waits for a GPU.
    """
    for hook, total in shared.items():
        if abs(total - 1) > OFF:
            raise UserError(
                f"{hook} gives shares that sum to {total:.6g}, so that the round would end in no mean of its models; "
                "divide them by their sum (weights that need not sum to 1 are for `rescale`)"
            )
