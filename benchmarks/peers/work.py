"""The workloads: plain federated averaging by SGD, without evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedbraid import data
from fedbraid.core.random import stream
from fedbraid.core.sampling import fixed
from peers.federation import Federation
from peers.networks import network


@dataclass(frozen=True)
class Workload:
    """A federation to time. Random images, all clients alike, unless the data is SYNTHETIC."""

    name: str
    model: str
    clients: int
    cohort: int
    each: int  # samples of a client; of SYNTHETIC's, the most
    batch: int
    epochs: int
    shape: tuple[int, ...] = ()
    classes: int = 10  # SYNTHETIC has ten as well

    def small(self) -> Workload:
        """A few steps, to try things out."""
        return replace(
            self,
            clients=min(self.clients, 6),
            cohort=min(self.cohort, 3),
            each=min(self.each, 70) if self.model == "logistic" else 8,
            batch=4 if self.shape else 32,
            epochs=min(self.epochs, 2),
        )


WORKS = (
    Workload("synthetic-logistic", "logistic", clients=200, cohort=10, each=1000, batch=64, epochs=10),
    Workload("lenet", "lenet", clients=10, cohort=10, each=600, batch=64, epochs=2, shape=(1, 28, 28)),
    Workload("cnn", "cnn", clients=10, cohort=10, each=500, batch=50, epochs=1, shape=(3, 32, 32), classes=100),
    # what pfl-research measures itself and others by: CIFAR-10's shapes, IID
    Workload("pfl-cifar", "two-convolutions", clients=1000, cohort=50, each=50, batch=10, epochs=1, shape=(3, 32, 32)),
)


def federation(work: Workload, rounds: int, lr: float = 0.01) -> Federation:
    x, y, ends = images(work) if work.shape else synthetic(work)
    cohorts = np.stack([fixed(work.clients, work.cohort, seed=0, round=number) for number in range(rounds)])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = tuple(p.detach() for p in network(work.model, x.shape[1:], work.classes).parameters())
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    return Federation(work.model, work.classes, work.batch, work.epochs, lr, x, y, ends, cohorts, start)


def synthetic(work: Workload) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """SYNTHETIC, whose clients hold different amounts, one after the other."""
    dataset = data.load("synthetic", clients=work.clients, max_size=work.each)
    clients = data.make_partition(dataset, "natural", None, 0).clients
    order = np.concatenate(clients)
    x = dataset.train.x[order].astype(np.float32)
    return x, dataset.train.y[order].astype(np.int64), np.cumsum([len(c) for c in clients])


def images(work: Workload) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Speed does not depend on what they show."""
    rng, count = stream(0, "benchmark images"), work.clients * work.each
    x = rng.standard_normal((count, *work.shape), dtype=np.float32)
    y = rng.integers(0, work.classes, count)
    return x, y, np.arange(1, work.clients + 1) * work.each


def flops_per_sample(made: Federation) -> float:
    """Of one step forward and backward, counted by torch."""
    x, y = made.batches(0)[0]
    module = made.network()
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.cross_entropy(module(x), y).backward()
    return counter.get_total_flops() / len(y)
