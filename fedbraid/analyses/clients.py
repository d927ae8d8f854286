"""Questions to the clients of a recorded run's next round, answered by its engine: all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.chain import Chain
from fedbraid.core.optimizer import Optimizer
from fedbraid.core.outputs import Outputs
from fedbraid.core.round import Job
from fedbraid.core.strand import Client, Cohort, Gradient, Strand
from fedbraid.core.tree import Tree
from fedbraid.engines.replies import Stacked

if TYPE_CHECKING:
    from fedbraid.analyses.recorded import Recorded

Question = Callable[[Client], Tree]
"""A function of a client: `c.start` is the model in question, `c.over_data` goes over the client's samples."""


@dataclass(frozen=True)
class ClientQuestion(Strand):
    """Have every client evaluate a function before training, and send its result."""

    name = "ask"

    question: Question

    def probe(self, c: Client) -> Tree:
        return self.question(c)


def answers(run: Recorded, models: Tensor, buffers: Tensor, question: Question) -> Tree:
    """Evaluate `question` on each client of the next round, [C, …], for its own model [C, D] or one for all, [D]."""
    job = run.next_round.job
    asked = replace(job, kind="probe", model=models, buffers=buffers, sent={})
    replies = _replies(run, asked, Chain((ClientQuestion(question),)))
    return {key.removeprefix("ask."): replies.each(key) for key in (*replies.uploads, *replies.filed)}


def sums_over_clients(run: Recorded, model: Tensor, buffers: Tensor, question: Question) -> Tree:
    """Return the sum over all clients of the federation of what `question` gives on each, for one model [D]."""
    e = run.simulation
    everybody = Cohort(np.arange(len(e.sizes)), torch.as_tensor(e.sizes, dtype=model.dtype, device=model.device))
    job = replace(run.next_round.job, kind="probe", cohort=everybody, model=model, buffers=buffers, sent={})
    replies = _replies(run, job, Chain((ClientQuestion(question),)))
    ones = torch.ones_like(everybody.sizes)
    return {key.removeprefix("ask."): replies.sum(key, ones) for key in (*replies.uploads, *replies.filed)}


@dataclass(frozen=True)
class GradientAt(Strand):
    """Add up gradients at a point that is sent, wherever local training is; the optimiser must be `Reveal`."""

    def begin(self, w: Tensor, c: Client) -> Tree:
        return {"sum": torch.zeros_like(w), "samples": w.new_zeros(())}

    def grad(self, w: Tensor, c: Client, next: Gradient) -> Tensor:
        return next(c.received["point"])  # listed last, so what other strands make of a gradient is made there too

    def step(self, w: Tensor, out: Outputs, batch: Batch, c: Client) -> Tree:
        count = batch.mask.sum()
        return {"sum": c.memory["sum"] + count * w, "samples": c.memory["samples"] + count}

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        return {"gradient": c.memory["sum"] / c.memory["samples"]}, c.state


@dataclass(frozen=True)
class Reveal:
    """An optimiser that takes the gradient for the model, which shows it to `step`."""

    lr: float = 1.0
    decay: float = 1.0
    clip: float = 0.0

    def init(self, w: Tensor) -> Tree:
        return {}

    def step(self, g: Tensor, state: Tree, w: Tensor, lr: Tensor) -> tuple[Tensor, Tree]:
        return g, state

    def effective_steps(self, steps: Tensor) -> Tensor:
        return steps


def gradients(run: Recorded, point: Tensor) -> Tensor:
    """[C, D] the gradient at `point` that each client of the next round would follow with the run's method.

    It is the mean over one pass through the client's samples, in batches as they are trained on: the gradient of the
    client's objective with what strands add to it or correct, for what the server sends in that round.
    """
    job, chain = run.next_round.job, run.simulation.chain
    asked = replace(job, sent=job.sent | {GradientAt.name: {"point": point}})
    g = _replies(run, asked, chain + GradientAt(), Reveal()).each(f"{GradientAt.name}.gradient")
    frozen = run.simulation.model.frozen
    return g if frozen is None else g.masked_fill(frozen, 0.0)


def task_gradients(run: Recorded, point: Tensor) -> Tensor:
    """[C, D] the gradient at `point` of the mean loss over each client's samples, without what the method adds."""
    buffers = run.next_round.before.buffers
    return answers(run, point, buffers, lambda c: {"gradient": c.full_gradient(c.start)})["gradient"]


def _replies(run: Recorded, job: Job, chain: Chain, optimizer: Optimizer | None = None) -> Stacked:
    """Run a job on clients by the run's engine, with another chain and one pass over their data."""
    engine = run.simulation.local
    other = replace(
        engine,
        job=replace(engine.job, chain=chain, optimizer=optimizer or engine.job.optimizer),
        work=replace(engine.work, epochs=1, steps=0, least=0),
        chunk=run.config.engine.chunk,
        kind="stack" if engine.kind == "compiled" else engine.kind,
    )
    with run.simulation.threads():
        return other.run(job)
