"""Clients whose gradients are exact and linear, trained by the round and the local job alone: no network, no data.

Client k's objective is Σ_j a_kj (w_j − b_kj)² / 2. Fixture Q has two clients in two dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbraid.core.batch import Batch
from fedbraid.core.chain import Chain
from fedbraid.core.client_step import LocalJob
from fedbraid.core.model import Model
from fedbraid.core.optimizer import Optimizer, Sgd
from fedbraid.core.outputs import Outputs
from fedbraid.core.round import Job, Server, begin, one_round
from fedbraid.core.strand import Cohort, Setup
from fedbraid.core.tree import PerClient, stack
from fedbraid.strands.parser import parse

Q = ((1.0, 2.0), (1.0, 0.0)), ((2.0, 1.0), (-1.0, 2.0))
"""Curvature and optimum of each client."""


class Nothing(nn.Module):
    """A network whose parameters are the point itself; its outputs are not looked at."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.body = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.head = nn.Parameter(torch.zeros(dimensions - 1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Outputs:
        return Outputs(torch.zeros(len(x), 2) + self.body.sum(), torch.zeros(len(x), 1) + self.head.sum())


class Replied:
    """What a cohort uploaded."""

    came = None

    def __init__(self, uploads: Sequence[dict[str, Tensor]]) -> None:
        self.uploads = stack(uploads)

    def each(self, key: str) -> Tensor:
        return self.uploads[key]

    def sum(self, key: str, weights: Tensor) -> Tensor:
        return torch.tensordot(weights, self.uploads[key], 1)


class World:
    """A federation of quadratic clients that take `steps` local steps a round."""

    def __init__(
        self,
        method: str | Chain,
        clients: Sequence[Any] = Q,
        *,
        steps: int | Sequence[int] = 2,
        sizes: Sequence[float] | None = None,
        optimizer: Optimizer | None = None,
        lr: float = 0.1,
        rounds: int = 100,
    ) -> None:
        self.chain = parse(method) if isinstance(method, str) else method
        self.a, self.b = (torch.tensor(np.array([c[i] for c in clients]), dtype=torch.float64) for i in (0, 1))
        n, d = self.a.shape
        self.steps = [steps] * n if isinstance(steps, int) else list(steps)
        self.sizes = torch.tensor(sizes or [1.0] * n, dtype=torch.float64)
        module = Nothing(d)
        for strand in self.chain.using("model"):
            module = strand.model(module)
        self.model = Model.of(module)
        self.optimizer, self.lr = optimizer or Sgd(), lr
        w, buffers = self.model.initial(torch.float64, torch.device("cpu"))
        self.setup = Setup(
            w, buffers, self.model.layout, 2, 2, 1, n, n, rounds, 0, "", n, self.model.frozen
        )  # fmt: skip
        self.server: Server = begin(self.chain, self.setup)
        self.states = [{s.name: s.init_client(self.setup) for s in self.chain} for _ in range(n)]
        self.gradients = 0

    def slope(self, k: int, w: Tensor) -> Tensor:
        self.gradients += 1
        return self.a[k] * (w - self.b[k])

    def round(self, cohort: Sequence[int] | None = None) -> World:
        ids = np.arange(len(self.a)) if cohort is None else np.array(cohort)
        flow = one_round(self.chain, self.lr, self.setup, self.server, Cohort(ids, self.sizes[ids]), seed=0)
        try:
            job = next(flow)
            while True:
                job = flow.send(Replied([self.client(job, place, int(k)) for place, k in enumerate(ids)]))
        except StopIteration as done:
            self.server = done.value
        return self

    def client(self, job: Job, place: int, k: int) -> dict[str, Tensor]:
        def differentiate(objective: Any, w: Tensor) -> Any:
            return self.slope(k, w), (w.new_zeros(()), (Outputs(w, w), job.buffers))

        def batches(whole: bool) -> list[Batch]:
            return [Batch(torch.zeros(1, 1), torch.tensor([[1.0, 0.0]]), torch.ones(1))]

        local = LocalJob(self.chain, self.model, self.optimizer, "classification", differentiate)
        own = job.model.dim() == 2
        given = {
            "start": job.model[place] if own else job.model,
            "buffers": job.buffers[place] if own else job.buffers,
            "initial": self.setup.w,
            "initial_buffers": self.setup.buffers,
            "lr": torch.tensor(job.lr, dtype=torch.float64),
            "kept": self.states[k],
            "received": {
                s: {key: v[place] for key, v in t.items()} if isinstance(t, PerClient) else dict(t)
                for s, t in job.sent.items()
            },
            "draws": {},
            "label_counts": torch.ones(2, dtype=torch.float64),
            "size": self.sizes[k],
            "relative_size": self.sizes[k] / self.sizes.mean(),
            "steps": torch.tensor(float(self.steps[k]), dtype=torch.float64),
        }
        if job.kind == "probe":
            return local.probe(given, batches)
        state = local.begin(given, batches)
        for step in range(self.steps[k]):
            if step and any(s.every_epoch for s in self.chain):  # every step is an epoch here
                state = local.new_epoch(state, given, batches)
            state = local.step(state, batches(False)[0], given, {})
        uploads, self.states[k] = local.end(state, given, batches)
        return uploads

    def rounds(self, number: int) -> list[np.ndarray]:
        """The models handed out after each of so many rounds of everybody."""
        return [self.round().deployed for _ in range(number)]

    @property
    def deployed(self) -> np.ndarray:
        return self.server.deployed(self.chain, self.setup).numpy()


def clients(n: int, d: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Some clients in d dimensions."""
    rng = np.random.default_rng(seed)
    return [(rng.uniform(0.5, 2.0, d), rng.normal(size=d)) for _ in range(n)]
