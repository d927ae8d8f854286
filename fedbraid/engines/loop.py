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
        """Uploads and kept state with a leading client axis, in the order given, and the work of all.

        `cached`: frozen models' outputs on each client's samples; `looked`: how many samples they count as looked at.
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
        """The state of torch's own generator, which is no hook's to draw from: the stack has torch say who does."""
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()

    def _refuse_draws(self, train: Callable[[LocalJob, int], tuple[State, Work]], clients: int) -> None:
        """Once torch's own generator has moved on: whether hooks did that, or another thread of the process.

        Clients train once more, each under a watch of its own thread. Nothing of that is kept.
        """

        def watched(job: LocalJob, k: int) -> tuple[State, Work]:
            with NoDraws(UserError(DRAWS)):
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
        """What hooks passed over since the last call; the tally begins anew."""
        tally = job.tally
        work = tally.over(int(self.clients.sizes[client]), int(plan.counts[0]))
        tally.gradients = tally.views = tally.passes = tally.slopes = tally.glances = 0
        return work

    def _each(
        self, f: Callable[[LocalJob, int], tuple[State, Work]], clients: int, meanwhile: Callable[[], None] = nothing
    ) -> tuple[State, Work]:
        """What `f` gives for each client, with a leading axis, and the work of all."""
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
                if left == min(self.workers, clients) - 1:  # from now on there is a core for us
                    meanwhile()
        finally:
            for each in waiting:
                each.cancel()  # those that have not begun, where one has failed
            wait(waiting)
        return rows.tree, work


class Rows:
    """Trees of the same shape that come one by one, from several threads, and lie side by side."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.tree: State = {}
        self._lock = Lock()

    def put(self, row: int, tree: State) -> None:
        with self._lock:
            if not self.tree:
                self.tree = grow(tree, lambda t: t.new_empty((self.count, *t.shape)))
        grow(self.tree, lambda every, t: every[row].copy_(t), tree)
