"""The loop: client after client, the readable reference.

Batches are really as long as they are; nothing is padded. On a CPU one client trains per core, each on one thread:
faster for convolutions than the stack, and the result does not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import Tensor

from fedbraid.core.augment import PREFIX
from fedbraid.core.batch import Batch
from fedbraid.core.local import Batches, LocalJob, State, Tally, Work
from fedbraid.core.model import Model
from fedbraid.core.plan import Plan
from fedbraid.core.tree import Tree
from fedbraid.core.vector import Layout
from fedbraid.engines.cpu import usable_cores
from fedbraid.engines.kernels.pool import for_loops
from fedbraid.engines.samples import Clients
from fedbraid.models.outputs import Outputs

T = TypeVar("T")


def channels_last(images: Tensor) -> Tensor:
    """The same images with their channels innermost in memory: what CPU convolutions and poolings are fastest with.

    Images of one channel lie like that already, but have to say so: torch goes by the strides.
    """
    if images.shape[1] == 1:
        return images.reshape(len(images), *images.shape[2:]).unsqueeze(-1).permute(0, 3, 1, 2)
    return images.contiguous(memory_format=torch.channels_last)


class _ChannelsLast(Layout):
    """The same tensors, filters with their channels innermost."""

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        return {name: channels_last(t) if t.dim() == 4 else t for name, t in super().views(vector).items()}


def _for_a_cpu(model: Model, cap: float) -> Model:
    layout = _ChannelsLast(model.layout.names, model.layout.shapes)
    training, evaluating = (for_loops(m, cap) for m in (model.training, model.evaluating))
    return replace(model, training=training, evaluating=evaluating, layout=layout)


class Loop:
    """Runs the local job for one client at a time."""

    def __init__(self, job: LocalJob, clients: Clients, workers: int, cap: float) -> None:
        self.clients = clients
        self.device = clients.samples.x.device
        cores = workers or usable_cores()
        self.workers = cores if self.device.type == "cpu" else 1
        # functional_call swaps tensors inside a module, so each worker has a copy of its own
        self.jobs: SimpleQueue[LocalJob] = SimpleQueue()
        for _ in range(self.workers):
            model = job.model.to(clients.samples.dtype, self.device)
            model = _for_a_cpu(model, cap) if self.device.type == "cpu" else model
            self.jobs.put(replace(job, model=model, tally=Tally()))

    def train(
        self, given: Sequence[State], ids: Sequence[int], plans: Sequence[Plan], cached: Sequence[Mapping[str, Outputs]]
    ) -> list[tuple[Tree, dict[str, Tree], Work]]:
        """Each client's uploads, kept state and work, in the order given."""
        return self._map(lambda job, k: self._train_one(job, given[k], ids[k], plans[k], cached[k]), len(ids))

    def probe(self, given: Sequence[State], ids: Sequence[int], plans: Sequence[Plan]) -> list[tuple[Tree, Work]]:
        def one(job: LocalJob, k: int) -> tuple[Tree, Work]:
            answers = job.probe(given[k], self._batches(ids[k], plans[k]))
            return answers, self._work(job, ids[k], plans[k], trained=False)

        return self._map(one, len(ids))

    def _train_one(
        self, job: LocalJob, given: State, client: int, plan: Plan, cached: Mapping[str, Outputs]
    ) -> tuple[Tree, dict[str, Tree], Work]:
        batches = self._batches(client, plan)
        own, samples = self.clients.own(client), self.clients.samples
        state = job.begin(given, batches)
        draws = {key: torch.as_tensor(value).to(self.device) for key, value in plan.draws.items()}
        draws = {key: v.to(samples.dtype) if v.is_floating_point() else v for key, v in draws.items()}
        positions = torch.as_tensor(plan.positions).to(self.device)
        for t, count in enumerate(plan.counts.tolist()):
            if plan.first[t] and t:
                state = job.new_epoch(state, given, batches)
            at = positions[t, :count]
            now = {key: value[t] for key, value in draws.items()}
            changes = {key: value[:count] for key, value in now.items() if key.startswith(PREFIX)}
            x = samples.training_inputs(own[at], changes)
            batch = self._batch(x, own[at], now)
            seen = {name: Outputs(out.logits[at], out.features[at]) for name, out in cached.items()}
            state = job.step(state, batch, given, seen)
        uploads, kept = job.end(state, given, batches)
        return uploads, kept, self._work(job, client, plan)

    def _batch(self, x: Tensor, index: Tensor, draws: Tree) -> Batch:
        samples = self.clients.samples
        if x.dim() == 4 and self.device.type == "cpu":
            x = channels_last(x)
        return Batch(x, samples.targets(index), torch.ones(len(index), dtype=samples.dtype, device=self.device), draws)

    def _batches(self, client: int, plan: Plan) -> Batches:
        own = self.clients.own(client)
        first = torch.as_tensor(plan.positions[0, : plan.counts[0]]).to(self.device)
        inputs = self.clients.samples.inputs
        return lambda whole: (
            self._batch(inputs(index), index, {}) for index in (torch.split(own, 512) if whole else [own[first]])
        )

    def _work(self, job: LocalJob, client: int, plan: Plan, trained: bool = True) -> Work:
        """What the tally since the last call amounts to; every step of a round looks equally often at its batch."""
        tally = job.tally
        gradients, views = tally.gradients // len(plan), tally.views // len(plan)
        work = tally.over(int(self.clients.sizes[client]), int(plan.counts[0]))
        if trained:
            work += Work((gradients + views) * plan.samples, gradients * plan.samples)
        tally.gradients = tally.views = tally.passes = tally.slopes = tally.glances = 0
        return work

    def _map(self, f: Callable[[LocalJob, int], T], clients: int) -> list[T]:
        def one(k: int) -> T:
            job = self.jobs.get()
            try:
                with torch.no_grad():
                    return f(job, k)
            finally:
                self.jobs.put(job)

        if self.device.type != "cpu":
            return [one(k) for k in range(clients)]
        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(one, range(clients)))
