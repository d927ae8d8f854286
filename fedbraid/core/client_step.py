"""The local job: what ONE client does in a round, as pure functions of tensors.

Engines decide how many clients go through these functions at once: one (the loop), or a whole cohort with a leading
client axis (`torch.func.vmap`, the stack). Nothing here knows of that axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedbraid.core.batch import Batch
from fedbraid.core.chain import Chain
from fedbraid.core.dropout import DRAW
from fedbraid.core.gradient import Objective
from fedbraid.core.model import Model
from fedbraid.core.optimizer import Optimizer, clipped
from fedbraid.core.outputs import Outputs
from fedbraid.core.strand import TRAINED, Client, Gradient, Strand, View, no_batch
from fedbraid.core.task import Task, sample_losses, task_loss
from fedbraid.core.tree import Tree, grow
from fedbraid.errors import UserError

Differentiate = Callable[[Objective, Tensor], tuple[Tensor, tuple[Tensor, Any]]]
"""(objective, w) -> gradient, (loss, what came of it). The stack and the loop bring their own."""

SHARED_VIEW = "received"
"""The frozen model that strands share; others are a strand's own."""

Batches = Callable[[bool], Iterable[Batch]]
"""One client's whole training set (True) batch by batch, or the first batch of its round (False)."""

FOR_THE_LOG = "log: loss", "log: samples"
"""Uploads that are no part of a method: the sum of training losses, and of how many samples."""

Evaluation = tuple[Tensor, tuple[Outputs, Tensor]]
"""The objective at a point: the loss, the outputs and the buffers afterwards."""

State = dict[str, Any]
"""A client in the middle of its round: w, buffers, the optimiser's state, each strand's memory, losses so far."""


@dataclass(frozen=True)
class Work:
    """How many samples went forward and backward through the network."""

    forward: int = 0
    backward: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.forward + other.forward, self.backward + other.backward)


@dataclass
class Tally:
    """How often the functions below looked at data: engines turn it into sample counts."""

    gradients: int = 0  # evaluations of the objective and its gradient
    views: int = 0  # batches looked at through a frozen model
    passes: int = 0  # forward passes over a client's whole data
    slopes: int = 0  # gradients over a client's whole data
    glances: int = 0  # forward passes over a round's first batch

    def over(self, size: int, first: int) -> Work:
        """What passes over data of `size` samples, and glances at `first` of them, amount to."""
        return Work((self.passes + self.slopes) * size + self.glances * first, self.slopes * size)


def autograd(objective: Objective, w: Tensor) -> tuple[Tensor, tuple[Tensor, Any]]:
    """Differentiate with plain autograd: any module, and less overhead for a single client."""
    w = w.detach().requires_grad_()
    with torch.enable_grad():
        loss, more = objective(w)
    (g,) = torch.autograd.grad(loss, w)
    return g, (loss.detach(), _detached(more))


@dataclass(frozen=True, eq=False)
class LocalJob:
    """A chain, a model and an optimiser, ready to train one client."""

    chain: Chain
    model: Model
    optimizer: Optimizer
    task: Task
    differentiate: Differentiate = autograd
    tally: Tally = field(default_factory=Tally)

    def begin(self, given: State, batches: Batches) -> State:
        """Where local training starts. `given` is what the client received and keeps."""
        w = given["start"]
        state = {
            "w": w,
            "buffers": given["buffers"],
            "optimizer": self.optimizer.init(w),
            "memory": {},
            "loss": w.new_zeros(()),
            "samples": w.new_zeros(()),
        }
        memory: dict[str, Tree] = {}
        chosen = ""
        for s in self.chain.using("begin"):
            mine = dict(s.begin(state["w"], self._client(s, given, state, batches)))
            if "model" in mine:
                if chosen:
                    raise UserError(f"{chosen} and {s.name} both choose where local training starts; keep one of them")
                chosen = s.name
                start = {"w": mine.pop("model"), "buffers": mine.pop("buffers", state["buffers"])}
                state |= start | {"start": start["w"]}
            memory[s.name] = mine
        return state | {"memory": memory}

    def new_epoch(self, state: State, given: State, batches: Batches) -> State:
        """Memory anew for the strands that want it at each local epoch."""
        fresh = {}
        for s in self.chain.using("begin"):
            if s.every_epoch:
                mine = s.begin(state["w"], self._client(s, given, state, batches))
                fresh[s.name] = {key: value for key, value in mine.items() if key not in ("model", "buffers")}
        return state | {"memory": state["memory"] | fresh}

    def step(self, state: State, batch: Batch, given: State, seen: Mapping[str, Outputs]) -> State:
        """One local step. `seen` holds the frozen models' outputs on this batch where they are known already."""
        chain = self.chain
        client = {s.name: self._client(s, given, state, no_batches, seen) for s in chain}
        for s in chain.using("batch"):
            batch = s.batch(batch, client[s.name])
        if not seen and chain.using("views"):
            seen = {name: self._look(view, batch.x) for name, view in self.views(given).items()}
            client = {s.name: self._client(s, given, state, no_batches, seen) for s in chain}

        evaluations: list[Evaluation] = []

        def objective(at: Tensor, buffers: Tensor) -> tuple[Tensor, tuple[Outputs, Tensor]]:
            out, after = self.model.learn(at, buffers, batch.x, batch.draws.get(DRAW), batch.mask)
            logits = out.logits
            for s in chain.using("logits"):
                logits = s.logits(logits, batch, client[s.name])
            loss = self._task_loss(out._replace(logits=logits), batch, client)
            for s in chain.using("loss"):
                if s is not chain.task_loss:
                    loss = loss + s.loss(out, batch, client[s.name])
            return loss, (out, after)

        def aside(at: Tensor, buffers: Tensor) -> tuple[Tensor, Evaluation]:
            g, evaluation = self.differentiate(lambda w: objective(w, buffers), at)
            if self.model.frozen is not None:
                g = torch.where(self.model.frozen, 0.0, g)
            self.tally.gradients += 1
            return clipped(g, self.optimizer.clip), evaluation

        def raw(at: Tensor) -> Tensor:
            buffers = evaluations[-1][1][1] if evaluations else state["buffers"]  # every pass moves the statistics
            g, evaluation = aside(at, buffers)
            evaluations.append(evaluation)
            return g

        def of_another(model: View) -> View:
            g, (_, (_, buffers)) = aside(*model)
            return g, buffers

        remembered: dict[str, Tree] = {}
        gradient: Gradient = raw
        for s in chain.using("grad"):  # the first listed is innermost
            gradient = _wrapped(s, replace(client[s.name], batch_gradient=of_another), gradient, remembered)
        g = gradient(state["w"])
        w, optimizer = self.optimizer.step(g, state["optimizer"], state["w"], given["lr"])
        if self.model.frozen is not None:
            w = torch.where(self.model.frozen, state["w"], w)
        for on in (memory[TRAINED] for memory in state["memory"].values() if TRAINED in memory):
            w = torch.where(on > 0, w, state["w"])
            optimizer = grow(optimizer, partial(_moved, on > 0), state["optimizer"])

        loss, (out, _) = evaluations[0]
        count = batch.mask.sum()
        for s in chain.using("step"):
            seen_by = replace(client[s.name], memory=remembered.get(s.name, client[s.name].memory))
            remembered[s.name] = s.step(w, out, batch, seen_by)
        for name, memory in remembered.items():
            _same_names(name, "remembers", memory, "begin", state["memory"].get(name, {}))
        return state | {
            "w": w,
            "buffers": evaluations[-1][1][1],
            "optimizer": optimizer,
            "memory": state["memory"] | remembered,
            "loss": state["loss"] + loss * count,
            "samples": state["samples"] + count,
        }

    def end(self, state: State, given: State, batches: Batches) -> tuple[Tree, dict[str, Tree]]:
        """What the client uploads, and what each strand keeps on it."""
        uploads: Tree = {"model": state["w"], "buffers": state["buffers"]}
        uploads |= dict(zip(FOR_THE_LOG, (state["loss"], state["samples"]), strict=True))
        kept = dict(given["kept"])
        replaced = ""
        for s in self.chain.using("end"):
            mine, kept[s.name] = s.end(state["w"], self._client(s, given, state, batches))
            mine = dict(mine)
            if "model" in mine:
                if replaced:
                    raise UserError(
                        f"{replaced} and {s.name} both replace the model that is uploaded; keep one of them"
                    )
                uploads["model"], replaced = mine.pop("model"), s.name
                needing = self.chain.needing_as_trained
                if needing:
                    raise UserError(
                        f"{s.name} and {needing[0]} do not go together: {s.name} replaces the model that is uploaded, "
                        f"from which {needing[0]} learns what local training did"
                    )
            if "buffers" in mine:
                uploads["buffers"] = mine.pop("buffers")
            _same_names(s.name, "keeps on clients", kept[s.name], "init_client", given["kept"].get(s.name, {}))
            uploads |= {f"{s.name}.{key}": value for key, value in mine.items()}
        return uploads, {name: tree for name, tree in kept.items() if tree}

    def probe(self, given: State, batches: Batches) -> Tree:
        """The answers to the exchange before training."""
        state: State = {"buffers": given["buffers"], "memory": {}}
        answers: Tree = {}
        for s in self.chain.using("probe"):
            mine = s.probe(self._client(s, given, state, batches))
            answers |= {f"{s.name}.{key}": value for key, value in mine.items()}
        return answers

    def views(self, given: State) -> dict[str, tuple[Tensor, Tensor]]:
        """The frozen models that the chain looks through, by name."""
        state: State = {"buffers": given["buffers"], "memory": {}}
        views: dict[str, tuple[Tensor, Tensor]] = {}
        for s in self.chain.using("views"):
            mine = s.views(self._client(s, given, state, no_batches))
            views |= {name if name == SHARED_VIEW else f"{s.name}.{name}": view for name, view in mine.items()}
        return views

    def _look(self, view: tuple[Tensor, Tensor], x: Tensor) -> Outputs:
        self.tally.views += 1
        w, buffers = view
        return Outputs(*(t.detach() for t in self.model.predict(w, buffers, x)))

    def _task_loss(self, out: Outputs, batch: Batch, client: Mapping[str, Client]) -> Tensor:
        s = self.chain.task_loss
        return task_loss(self.task, out.logits, batch) if s is None else s.loss(out, batch, client[s.name])

    def _client(
        self, s: Strand, given: State, state: State, batches: Batches, seen: Mapping[str, Outputs] | None = None
    ) -> Client:
        def at(model: Tensor | View) -> View:
            return model if isinstance(model, tuple) else (model, state["buffers"])

        return Client(
            start=state["start"] if "start" in state else given["start"],
            received_model=(given["start"], given["buffers"]),
            buffers=given["buffers"],
            trained_buffers=state["buffers"],
            initial=(given["initial"], given["initial_buffers"]),
            received=given["received"].get(s.name, {}),
            state=given["kept"].get(s.name, {}),
            memory=state["memory"].get(s.name, {}),
            draws=given["draws"].get(s.name, {}),
            label_counts=given["label_counts"],
            size=given["size"],
            relative_size=given["relative_size"],
            steps=given["steps"],
            lr=given["lr"],
            optimizer=self.optimizer,
            task=self.task,
            layout=self.model.layout,
            views={name.removeprefix(f"{s.name}."): out for name, out in (seen or {}).items()},
            over_data=lambda model, f, whole=True: self._over_data(at(model), f, batches, whole),
            batch_gradient=no_batch,
            full_gradient=lambda model: self._full_gradient(at(model), batches, given["size"]),
        )

    def _over_data(self, view: View, f: Callable[[Outputs, Batch], Tree], batches: Batches, whole: bool) -> Tree:
        self.tally.passes += whole
        self.tally.glances += not whole
        return _total(f(self.model.predict(*view, batch.x), batch) for batch in batches(whole))

    def _full_gradient(self, view: View, batches: Batches, size: Tensor) -> Tensor:
        self.tally.slopes += 1
        w, buffers = view

        def share(batch: Batch) -> Tree:
            def objective(at: Tensor) -> tuple[Tensor, Tensor]:
                logits = self.model.predict(at, buffers, batch.x).logits
                return (sample_losses(self.task, logits, batch) * batch.mask).sum() / size, logits

            return {"g": self.differentiate(objective, w)[0]}

        return _total(share(batch) for batch in batches(True))["g"]


def keep_unless(on: Tensor, new: State, old: State) -> State:
    """`new` where `on`, else `old`: a padded step changes nothing, momentum and memory included."""
    kept: State = grow(new, lambda n, o: torch.where(on, n, o), old)
    return kept


def no_batches(whole: bool) -> Iterable[Batch]:
    raise RuntimeError("over_data and full_gradient may be called in begin, end and probe, not inside a local step")


def _same_names(strand: str, does: str, now: Tree, hook: str, first: Tree) -> None:
    if now.keys() != first.keys():
        raise UserError(f"{strand} {does} {sorted(now)}, but its {hook} gives {sorted(first)}; give the same names")


def _total(parts: Iterable[Tree]) -> Tree:
    total: Tree = {}
    for part in parts:
        total = {key: total[key] + part[key] for key in part} if total else part
    return total


def _wrapped(strand: Strand, client: Client, inner: Gradient, remembered: dict[str, Tree]) -> Gradient:
    """`inner` wrapped by the strand's `grad`; memory that this returns too is added to `remembered`."""

    def gradient(w: Tensor) -> Tensor:
        made = strand.grad(w, client, inner)
        if isinstance(made, Tensor):
            return made
        g, remembered[strand.name] = made
        return g

    return gradient


def _moved(on: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """An optimiser's vector where parameters move, and as it was where they do not; its numbers go on."""
    return torch.where(on, new, old) if new.shape == on.shape else new


def _detached(tree: Any) -> Any:
    """Tensors in nested tuples, cut off from the graph that made them."""
    if isinstance(tree, Tensor):
        return tree.detach()
    if isinstance(tree, Outputs):
        return Outputs(*map(_detached, tree))
    return tuple(map(_detached, tree)) if isinstance(tree, tuple) else tree
