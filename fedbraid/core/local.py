"""The local job: what ONE client does in a round, as pure functions of tensors.

Engines decide how many clients go through these functions at once: one (the loop), or a whole cohort with a leading
client axis (`torch.func.vmap`, the stack). Nothing here knows of that axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import grad_and_value

from fedbraid.core.chain import Chain
from fedbraid.core.model import Model
from fedbraid.core.optimizer import Optimizer, clipped
from fedbraid.core.strand import Batch, Client, Gradient, OverData, Strand
from fedbraid.core.tree import Tree, grow
from fedbraid.models.outputs import Outputs

Objective = Callable[[Tensor], tuple[Tensor, tuple[Outputs, Tensor]]]
"""The loss at `w`, with the outputs and the buffers that came of it."""

Differentiate = Callable[[Objective, Tensor], tuple[Tensor, tuple[Tensor, tuple[Outputs, Tensor]]]]
"""(objective, w) -> gradient, (loss, (outputs, buffers)). The stack and the loop bring their own."""

TRAIN_LOSS = "train loss"
"""The one upload that is no part of a method: a number for the log."""

State = dict[str, Any]
"""A client in the middle of its round: w, buffers, the optimiser's state, each strand's memory, losses so far."""


@dataclass
class Tally:
    """How often the functions below looked at data: engines turn it into sample counts."""

    gradients: int = 0  # evaluations of the objective and its gradient
    views: int = 0  # batches looked at through a frozen model
    passes: int = 0  # passes over a client's whole data


@dataclass(frozen=True, eq=False)
class LocalJob:
    """A chain, a model and an optimiser, ready to train one client."""

    chain: Chain
    model: Model
    optimizer: Optimizer
    task: Literal["classification", "regression"]
    tally: Tally = field(default_factory=Tally)

    def begin(self, given: State, over_data: OverData) -> State:
        """Where local training starts. `given` is what the client received and keeps; see `Job.given`."""
        w = given["start"]
        memory = {s.name: s.begin(w, self._client(s, given, {}, {}, over_data)) for s in self.chain.using("begin")}
        zero = w.new_zeros(())
        return {
            "w": w,
            "buffers": given["buffers"],
            "optimizer": self.optimizer.init(w),
            "memory": memory,
            "loss": zero,
            "samples": zero,
        }

    def new_epoch(self, state: State, given: State, over_data: OverData) -> State:
        """Memory anew for the strands that want it at each local epoch."""
        fresh = {
            s.name: s.begin(state["w"], self._client(s, given, state["memory"], {}, over_data))
            for s in self.chain.using("begin")
            if s.every_epoch
        }
        return state | {"memory": state["memory"] | fresh}

    def step(
        self, state: State, batch: Batch, given: State, seen: Mapping[str, Outputs], differentiate: Differentiate
    ) -> State:
        """One local step. `seen` holds the frozen models' outputs on this batch where they are known already."""
        chain, w, buffers = self.chain, state["w"], state["buffers"]
        client = {s.name: self._client(s, given, state["memory"], seen, no_data) for s in chain}
        for s in chain.using("batch"):
            batch = s.batch(batch, client[s.name])
        if not seen and chain.using("views"):
            seen = {name: self._look(view, batch.x) for name, view in self.views(given).items()}
            client = {s.name: self._client(s, given, state["memory"], seen, no_data) for s in chain}

        def objective(at: Tensor) -> tuple[Tensor, tuple[Outputs, Tensor]]:
            out, after = self.model.learn(at, buffers, batch.x)
            logits = out.logits
            for s in chain.using("logits"):
                logits = s.logits(logits, batch, client[s.name])
            loss = self._task(logits, batch, client)
            for s in chain.using("loss"):
                loss = loss + s.loss(out, batch, client[s.name])
            return loss, (out, after)

        evaluations: list[tuple[Tensor, tuple[Outputs, Tensor]]] = []

        def raw(at: Tensor) -> Tensor:
            g, evaluation = differentiate(objective, at)
            self.tally.gradients += 1
            evaluations.append(evaluation)
            return clipped(g, self.optimizer.clip)

        gradient: Gradient = raw
        for s in chain.using("grad"):  # the first listed is innermost
            gradient = _wrapped(s, client[s.name], gradient)
        w, optimizer = self.optimizer.step(gradient(w), state["optimizer"], w, given["lr"])

        loss, (out, _) = evaluations[0]
        count = batch.mask.sum()
        remembered = {s.name: s.step(w, out, batch, client[s.name]) for s in chain.using("step")}
        return {
            "w": w,
            "buffers": evaluations[-1][1][1],
            "optimizer": optimizer,
            "memory": state["memory"] | remembered,
            "loss": state["loss"] + loss * count,
            "samples": state["samples"] + count,
        }

    def end(self, state: State, given: State, over_data: OverData) -> tuple[Tree, dict[str, Tree]]:
        """What the client uploads, and what each strand keeps on it."""
        loss = state["loss"] / state["samples"].clamp(min=1)
        uploads: Tree = {"model": state["w"], "buffers": state["buffers"], TRAIN_LOSS: loss}
        kept = dict(given["kept"])
        for s in self.chain.using("end"):
            mine, kept[s.name] = s.end(state["w"], self._client(s, given, state["memory"], {}, over_data))
            mine = dict(mine)
            if "model" in mine:
                uploads["model"] = mine.pop("model")
            uploads |= {f"{s.name}.{key}": value for key, value in mine.items()}
        return uploads, {name: tree for name, tree in kept.items() if tree}

    def probe(self, given: State, over_data: OverData) -> Tree:
        """The answers to the exchange before training."""
        answers: Tree = {}
        for s in self.chain.using("probe"):
            mine = s.probe(self._client(s, given, {}, {}, over_data))
            answers |= {f"{s.name}.{key}": value for key, value in mine.items()}
        return answers

    def views(self, given: State) -> dict[str, tuple[Tensor, Tensor]]:
        """The frozen models that the chain looks through, by name."""
        views: dict[str, tuple[Tensor, Tensor]] = {}
        for s in self.chain.using("views"):
            views |= s.views(self._client(s, given, {}, {}, no_data))
        return views

    def _look(self, view: tuple[Tensor, Tensor], x: Tensor) -> Outputs:
        self.tally.views += 1
        w, buffers = view
        return Outputs(*(t.detach() for t in self.model.predict(w, buffers, x)))

    def _task(self, logits: Tensor, batch: Batch, client: Mapping[str, Client]) -> Tensor:
        for s in self.chain.using("task"):
            return s.task(logits, batch, client[s.name])
        return task_loss(self.task, logits, batch)

    def _client(
        self, s: Strand, given: State, memory: Mapping[str, Tree], seen: Mapping[str, Outputs], over_data: OverData
    ) -> Client:
        return Client(
            start=given["start"],
            buffers=given["buffers"],
            received=given["received"].get(s.name, {}),
            kept=given["kept"].get(s.name, {}),
            memory=memory.get(s.name, {}),
            label_counts=given["label_counts"],
            size=given["size"],
            steps=given["steps"],
            lr=given["lr"],
            optimizer=self.optimizer,
            views=seen,
            over_data=over_data,
        )


def task_loss(task: str, logits: Tensor, batch: Batch) -> Tensor:
    """The mean loss over the real samples of a batch: cross-entropy, or half the squared error."""
    if task == "regression":
        return batch.mean((logits.squeeze(-1) - batch.y).square() / 2)
    return batch.mean(-(batch.y * logits.log_softmax(-1)).sum(-1))


def keep_unless(on: Tensor, new: State, old: State) -> State:
    """`new` where `on`, else `old`: a padded step changes nothing, momentum and memory included."""
    kept: State = grow(new, lambda n, o: torch.where(on, n, o), old)
    return kept


def functional(objective: Objective, w: Tensor) -> tuple[Tensor, tuple[Tensor, tuple[Outputs, Tensor]]]:
    """Differentiate as a function transform: what `vmap` can batch."""
    result: tuple[Tensor, tuple[Tensor, tuple[Outputs, Tensor]]] = grad_and_value(objective, has_aux=True)(w)
    return result


def autograd(objective: Objective, w: Tensor) -> tuple[Tensor, tuple[Tensor, tuple[Outputs, Tensor]]]:
    """Differentiate with plain autograd: any module, and less overhead for a single client."""
    w = w.detach().requires_grad_()
    with torch.enable_grad():
        loss, (out, buffers) = objective(w)
    (g,) = torch.autograd.grad(loss, w)
    return g, (loss.detach(), (Outputs(out.logits.detach(), out.features.detach()), buffers.detach()))


def no_data(w: Tensor, f: Callable[[Outputs, Batch], Tree]) -> Tree:
    raise RuntimeError("over_data may be called in begin, end and probe, not inside a local step")


def _wrapped(strand: Strand, client: Client, inner: Gradient) -> Gradient:
    return lambda w: strand.grad(w, client, inner)
