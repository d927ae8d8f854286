"""How fast it is here, beside the usual way to write federated averaging.

The usual loop copies the model for each client, wraps its data in a DataLoader and steps a torch optimiser. All
contenders take the same local steps; they are timed in turn within one run, and the medians are compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedbraid import data, models
from fedbraid.config import Config, from_dict
from fedbraid.core.random import stream
from fedbraid.core.sampling import fixed
from fedbraid.data.dataset import Dataset, Split
from fedbraid.experiment import Experiment, Given, build, partition_of


@dataclass(frozen=True)
class Row:
    """One contender on one workload."""

    workload: str
    engine: str
    samples_per_second: float
    ratio: float  # to the usual loop, in the same run


@dataclass(frozen=True)
class Workload:
    """A federation to time: without evaluation, plain SGD."""

    name: str
    dataset: Callable[[], Dataset]
    settings: dict[str, Any]
    contenders: tuple[str, ...]


def images(shape: tuple[int, ...], classes: int, clients: int, each: int) -> Dataset:
    """Random images: speed does not depend on what they show."""
    rng = stream(0, "benchmark images")
    x = rng.integers(0, 256, (clients * each, *shape), dtype=np.uint8)
    y = rng.integers(0, classes, clients * each)
    return Dataset("images", Split(x, y), Split(x[:10], y[:10]), classes, mean=(127.5,), std=(73.6,))


WORKLOADS = (
    Workload(
        "logistic, SYNTHETIC, 10 of 200 ragged clients",
        lambda: data.load("synthetic", clients=200, max_size=1000),
        {
            "partition": {"name": "natural"},
            "model": {"name": "logistic"},
            "sampling": {"clients": 10},
            "local": {"batch": 64, "epochs": 10},
        },
        ("compiled", "stack", "loop"),
    ),
    Workload(
        "lenet, 28×28, 10 clients × 600",
        lambda: images((1, 28, 28), 10, 10, 600),
        {"partition": {"name": "iid"}, "model": {"name": "lenet"}, "local": {"batch": 64, "epochs": 2}},
        ("loop", "stack"),
    ),
    Workload(
        "cnn, 32×32×3, 10 clients × 500",
        lambda: images((3, 32, 32), 100, 10, 500),
        {"partition": {"name": "iid"}, "model": {"name": "cnn"}, "local": {"batch": 50, "epochs": 1}},
        ("loop", "stack"),
    ),
)


def measure(*, quick: bool, device: str, note: Callable[[str], None], repeats: int = 0) -> list[Row]:
    """Every workload, contenders in turn; `quick` leaves out the largest one and repeats less."""
    rows: list[Row] = []
    for workload in WORKLOADS[:2] if quick else WORKLOADS:
        note(f"{workload.name} …")
        rows += time_workload(workload, device, repeats or (5 if quick else 9))
    return rows


def time_workload(workload: Workload, device: str, repeats: int) -> list[Row]:
    dataset = workload.dataset()
    rounds = {"usual loop": usual_loop(workload, dataset, device)}
    for kind in workload.contenders:
        rounds[kind] = fedbraid_round(build(_config(workload, device, kind), Given(data=dataset)))
    times: dict[str, list[float]] = {name: [] for name in rounds}
    for one in rounds.values():
        one(0)  # the first round makes programs and warms caches
    for number in range(1, repeats + 1):
        for name, one in rounds.items():
            if device == "cuda":
                torch.cuda.synchronize()
            began = perf_counter()
            samples = one(number)
            if device == "cuda":
                torch.cuda.synchronize()
            times[name].append((perf_counter() - began) / samples)
    usual = median(times["usual loop"])
    return [Row(workload.name, name, 1 / median(t), usual / median(t)) for name, t in times.items()]


def fedbraid_round(experiment: Experiment) -> Callable[[int], int]:
    def one(number: int) -> int:
        return int(experiment.advance()["backward_samples"])

    return one


def usual_loop(workload: Workload, dataset: Dataset, device: str) -> Callable[[int], int]:
    """Federated averaging as it is usually written: a copy, a DataLoader and an optimiser for each client."""
    config = _config(workload, device, "loop")
    clients = partition_of(config, dataset).clients
    x, y = torch.as_tensor(dataset.train.x), torch.as_tensor(dataset.train.y)
    if x.dtype == torch.uint8:
        x = (x.float() - dataset.mean[0]) / dataset.std[0]
    sets = [TensorDataset(x[torch.as_tensor(c)], y[torch.as_tensor(c)]) for c in clients]
    server = models.build(config.model.name, dataset.shape, dataset.classes).to(device)

    def one(number: int) -> int:
        nonlocal server
        sampled = _sampled(config, clients, number)
        trained = [_train_a_copy(server, sets[k], config, device) for k in sampled]
        total = sum(len(sets[k]) for k in sampled)
        average = {
            key: sum(m.state_dict()[key] * (len(sets[k]) / total) for k, m in zip(sampled, trained, strict=True))
            for key in server.state_dict()
        }
        server.load_state_dict(average)
        return total * config.local.epochs

    return one


def _train_a_copy(server: nn.Module, samples: TensorDataset, config: Config, device: str) -> nn.Module:
    model = copy.deepcopy(server)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(samples, batch_size=config.local.batch, shuffle=True)
    for _ in range(config.local.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)).logits, y.to(device))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model


def _sampled(config: Config, clients: Sequence[Any], number: int) -> list[int]:
    """The clients that FedBraid samples in this round, so that all contenders do the same work."""
    wanted = config.sampling.clients or len(clients)
    return [int(k) for k in fixed(len(clients), wanted, seed=config.seed, round=number)]


def _config(workload: Workload, device: str, kind: str) -> Config:
    return from_dict(
        {
            **workload.settings,
            "rounds": 10**6,
            "optimizer": {"lr": 0.01},
            "evaluate": {"every": 10**6},
            "engine": {"kind": kind, "device": device, "tf32": device == "cuda"},
        }
    )
