"""Contenders of the benchmark: FedBraid's engines, the usual loop, and a single model without clients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from fedbraid import models
from fedbraid.benchmark.work import TESTED, Workload
from fedbraid.config.schema import Config
from fedbraid.core.precision import Precision
from fedbraid.core.sampling import fixed
from fedbraid.data.dataset import Dataset
from fedbraid.engines.cpu import keep_freed_memory
from fedbraid.training.federation import Line
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.simulation import build_simulation, partition_of
from fedbraid.training.user_objects import UserObjects

Round = Callable[[int], int]
"""Runs the round of that number and says how many samples were trained on."""


def engine(
    work: Workload, device: str, kind: str, *, evaluated: bool = False, precision: Precision = "high"
) -> tuple[Round, str]:
    """FedBraid, and the kind of engine it is."""
    config = work.config(device, kind, evaluated=evaluated, precision=precision)
    simulation = build_simulation(RunSpec.of(config, UserObjects(data=work.dataset(TESTED if evaluated else 10))))
    clients, unread = simulation.clients, list[Line]()

    def one(number: int) -> int:
        unread.append(simulation.launch())
        while len(unread) > (device != "cpu"):  # lines of the log are read a round late there, as in a run
            unread.pop(0)()
        return int(clients.sizes[_sampled(config, len(clients), number)].sum()) * config.local.epochs

    return one, simulation.engine.kind


def usual_loop(work: Workload, device: str) -> Round:
    """Federated averaging as it is usually written: a copy, a DataLoader and an optimiser for each client."""
    dataset = work.dataset()
    config = work.config(device, "loop")
    clients = partition_of(config, dataset).clients
    x, y = _tensors(dataset)
    sets = [TensorDataset(x[torch.as_tensor(c)], y[torch.as_tensor(c)]) for c in clients]
    server = _network(config, dataset).to(device)

    def one(number: int) -> int:
        nonlocal server
        sampled = _sampled(config, len(clients), number)
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
            cross_entropy(model(x.to(device)).logits, y.to(device)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model


def single_model(work: Workload, device: str) -> Round:
    """The limit of a loop: one model, batches that lie ready on the device, memory that is kept; no federation."""
    if device == "cpu":
        keep_freed_memory()
    dataset = work.dataset()
    config = work.config(device, "loop")
    clients = partition_of(config, dataset).clients
    x, y = (t.to(device) for t in _tensors(dataset))
    ready = [[(x[at], y[at]) for at in torch.split(torch.as_tensor(c).to(device), config.local.batch)] for c in clients]
    model = _network(config, dataset).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def one(number: int) -> int:
        sampled = _sampled(config, len(clients), number)
        for k in sampled:
            for _ in range(config.local.epochs):
                for inputs, labels in ready[k]:
                    optimizer.zero_grad()
                    cross_entropy(model(inputs).logits, labels).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        return sum(len(clients[k]) for k in sampled) * config.local.epochs

    return one


def flops_per_sample(work: Workload) -> float:
    """Multiplications and additions of a forward and a backward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    dataset = work.dataset()
    x, y = _tensors(dataset)
    model = _network(work.config("cpu", "loop"), dataset)
    with FlopCounterMode(display=False) as counted:
        cross_entropy(model(x[:2]).logits, y[:2]).backward()  # type: ignore[no-untyped-call]
    return float(counted.get_total_flops()) / 2


def matmul_rate(device: str) -> float:
    """FLOP/s of a large product of matrices, at its best: what the processor can do for a network."""
    side = 1024 if device == "cpu" else 8192
    a, b = (torch.ones(side, side, device=device) for _ in range(2))
    times = []
    for _ in range(25):
        wait_for(device)
        began = perf_counter()
        a @ b
        wait_for(device)
        times.append(perf_counter() - began)
    return 2 * side**3 / min(times)


def wait_for(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def _network(config: Config, dataset: Dataset) -> nn.Module:
    return models.build(config.model.name, dataset.shape, dataset.classes, tokens=dataset.tokens)


def _tensors(dataset: Dataset) -> tuple[Tensor, Tensor]:
    x, y = torch.as_tensor(dataset.train.x), torch.as_tensor(dataset.train.y)
    if dataset.tokens:
        return x.long(), y
    return (x.float() - dataset.mean[0]) / dataset.std[0], y


def _sampled(config: Config, clients: int, number: int) -> list[int]:
    """The clients that FedBraid samples in this round, so that all contenders do the same work."""
    wanted = config.sampling.clients or clients
    return [int(k) for k in fixed(clients, wanted, seed=config.seed, round=number)]
