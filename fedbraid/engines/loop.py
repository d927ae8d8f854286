"""The loop: client after client, the readable reference.

Batches are really as long as they are; nothing is padded. On a CPU one client trains per core, each on one thread:
faster for convolutions than the stack, and the result does not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from dataclasses import replace
from queue import SimpleQueue
from threading import Lock

import torch
from torch import Tensor

from fedbraid.core.augment import PREFIX
from fedbraid.core.batch import Batch
from fedbraid.core.client_step import Batches, LocalJob, State, Tally, Work
from fedbraid.core.dispatch import NoDraws
from fedbraid.core.model import Model
from fedbraid.core.outputs import Outputs
from fedbraid.core.plan import Plan
from fedbraid.core.round import nothing
from fedbraid.core.tree import Tree, grow
from fedbraid.core.vector import Layout
from fedbraid.engines.codegen.trace import DRAWS
from fedbraid.engines.cpu import usable_cores
from fedbraid.engines.kernels.pool import for_loops
from fedbraid.engines.samples import Clients, picked
from fedbraid.engines.stack import Received
from fedbraid.errors import UserError


def channels_last(images: Tensor) -> Tensor:
    """Return the images [B, C, H, W] in channels-last memory, the layout in which CPU convolutions are fastest.

    Images of one channel have equal memory in both layouts, but torch chooses its kernel by the strides, so that these
    are set explicitly.
    """
    if images.shape[1] == 1:
        return images.reshape(len(images), *images.shape[2:]).unsqueeze(-1).permute(0, 3, 1, 2)
    return images.contiguous(memory_format=torch.channels_last)


class _ChannelsLast(Layout):
    """A layout whose filters (4-dimensional tensors) are viewed channels-last."""

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        return {name: channels_last(t) if t.dim() == 4 else t for name, t in super().views(vector).items()}


def _for_a_cpu(model: Model, cap: float) -> Model:
    layout = _ChannelsLast(model.layout.names, model.layout.shapes)
    training, evaluating = (for_loops(m, cap) for m in (model.training, model.evaluating))
    return replace(model, training=training, evaluating=evaluating, layout=layout)


class Loop:
    """Runs the local job for one client at a time, on a CPU for one client per core."""

    def __init__(self, job: LocalJob, clients: Clients, workers: int, cap: float) -> None:
        self.clients = clients
        self.device = clients.samples.x.device
        cores = workers or usable_cores()
        self.workers = cores if self.device.type == "cpu" else 1
        # `functional_call` swaps the tensors inside a module. Two threads that shared a module would train with each
        # other's weights, so each worker takes a job with modules of its own from this queue.
        self.jobs: SimpleQueue[LocalJob] = SimpleQueue()
        for _ in range(self.workers):
            model = job.model.to(clients.samples.dtype, self.device)
            model = _for_a_cpu(model, cap) if self.device.type == "cpu" else model
            self.jobs.put(replace(job, model=model, tally=Tally()))
        self._trained = False
        self._threads = ThreadPoolExecutor(self.workers, "fedbraid", lambda: torch.set_num_threads(1))

    def train(
        self,
        given: Received,
        ids: Sequence[int],
        plans: Sequence[Plan],
        cached: Sequence[Mapping[str, Outputs]],
        looked: Sequence[int],
        meanwhile: Callable[[], None] = nothing,
    ) -> tuple[Tree, dict[str, Tree], Work]:
        """Train clients one by one; return uploads [K, ...], kept state [K, ...] and the work of all.

        Args:
            given: what the clients received.
            ids: the clients' positions; results keep this order, however threads finish.
            plans: their plans.
            cached: outputs of frozen models on each client's samples.
            looked: samples that these count for.
            meanwhile: called once a core is idle.
        """

        def one(job: LocalJob, k: int) -> tuple[State, Work]:
            uploads, kept = self._train_one(job, given[k], ids[k], plans[k], cached[k])
            gradients, views = job.tally.gradients // len(plans[k]), job.tally.views // len(plans[k])  # of each step
            samples, looks = plans[k].samples, views or len(cached[k])
            work = Work(gradients * samples + looks * looked[k], gradients * samples)
            return {"uploads": uploads, "kept": kept}, work + self._passed(job, ids[k], plans[k])

        before = None if self._trained else self._generator()
        both, work = self._each(one, len(ids), meanwhile)
        if before is not None and not torch.equal(before, self._generator()):
            self._refuse_draws(one, len(ids))
        self._trained = True
        return both["uploads"], both["kept"], work

    def _generator(self) -> Tensor:
        """Return the state of torch's global generator, from which no hook may draw."""
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()

    def _refuse_draws(self, train: Callable[[LocalJob, int], tuple[State, Work]], clients: int) -> None:
        """Raise UserError if a hook advanced torch's global generator, and not another thread of the process.

        The clients train once more under a dispatch mode, which sees only its own thread. The results are dropped.
        """

        def watched(job: LocalJob, k: int) -> tuple[State, Work]:
            with NoDraws(lambda _: UserError(DRAWS)):
                train(job, k)
            return {}, Work()

        self._each(watched, clients)

    def probe(self, given: Received, ids: Sequence[int], plans: Sequence[Plan]) -> tuple[Tree, Work]:
        def one(job: LocalJob, k: int) -> tuple[State, Work]:
            answers = job.probe(given[k], self._batches(ids[k], plans[k]))
            return answers, self._passed(job, ids[k], plans[k])

        return self._each(one, len(ids))

    def _train_one(
        self, job: LocalJob, given: State, client: int, plan: Plan, cached: Mapping[str, Outputs]
    ) -> tuple[Tree, dict[str, Tree]]:
        batches = self._batches(client, plan)
        own, samples = self.clients.own(client), self.clients.samples
        state = job.begin(given, batches)
        draws = {key: torch.as_tensor(value).to(self.device) for key, value in plan.draws.items()}
        draws = {key: v.to(samples.dtype) if v.is_floating_point() else v for key, v in draws.items()}
        positions = torch.as_tensor(plan.positions).to(self.device)
        index, targets = picked(own, positions), samples.targets(own)
        for t, count in enumerate(plan.counts.tolist()):
            if plan.first[t] and t:
                state = job.new_epoch(state, given, batches)
            at, here = positions[t, :count], index[t, :count]
            now = {key: value[t] for key, value in draws.items()}
            changes = {key: value[:count] for key, value in now.items() if key.startswith(PREFIX)}
            batch = self._batch(samples.training_inputs(here, changes), picked(targets, at), now)
            seen = {name: Outputs(out.logits[at], out.features[at]) for name, out in cached.items()}
            state = job.step(state, batch, given, seen)
        return job.end(state, given, batches)

    def _batch(self, x: Tensor, y: Tensor, draws: Tree) -> Batch:
        if x.dim() == 4 and self.device.type == "cpu":
            x = channels_last(x)
        return Batch(x, y, torch.ones(len(x), dtype=self.clients.samples.dtype, device=self.device), draws)

    def _batches(self, client: int, plan: Plan) -> Batches:
        own, samples = self.clients.own(client), self.clients.samples

        def batches(whole: bool) -> Iterator[Batch]:
            first = torch.as_tensor(plan.positions[0, : plan.counts[0]]).to(self.device)
            for index in torch.split(own, 512) if whole else [own[first]]:
                yield self._batch(samples.inputs(index), samples.targets(index), {})

        return batches

    def _passed(self, job: LocalJob, client: int, plan: Plan) -> Work:
        """Return the work of passes over data since the last call, and reset the tally."""
        tally = job.tally
        work = tally.over(int(self.clients.sizes[client]), int(plan.counts[0]))
        tally.gradients = tally.views = tally.passes = tally.slopes = tally.glances = 0
        return work

    def _each(
        self, f: Callable[[LocalJob, int], tuple[State, Work]], clients: int, meanwhile: Callable[[], None] = nothing
    ) -> tuple[State, Work]:
        """Return the results of `f` for each client with a leading axis, and the work of all."""
        rows = Rows(clients)

        def one(k: int) -> Work:
            job = self.jobs.get()
            try:
                with torch.no_grad():
                    tree, work = f(job, k)
                    rows.put(k, tree)
                    return work
            finally:
                self.jobs.put(job)

        if self.device.type != "cpu":
            work = sum(map(one, range(clients)), Work())
            return rows.tree, work
        waiting, work = [self._threads.submit(one, k) for k in range(clients)], Work()
        try:
            for left, done in zip(reversed(range(clients)), as_completed(waiting), strict=True):
                work += done.result()
                if left == min(self.workers, clients) - 1:  # no client waits any more: a core is idle from now on
                    meanwhile()
        finally:
            for each in waiting:
                each.cancel()  # clients that have not begun, after one has failed
            wait(waiting)
        return rows.tree, work


class Rows:
    """Trees of the same shape that threads write side by side, each into its own row: no result waits for another."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.tree: State = {}
        self._lock = Lock()

    def put(self, row: int, tree: State) -> None:
        with self._lock:
            if not self.tree:
                self.tree = grow(tree, lambda t: t.new_empty((self.count, *t.shape)))
        grow(self.tree, lambda every, t: every[row].copy_(t), tree)
