"""One round of federated averaging in float64, by the book: what every contender's model is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn

import fedbraid as fb
from fedbraid.core.plan import LocalWork, make_plan
from peers.federation import Federation

Orders = Callable[[int], Iterable[np.ndarray]]
"""The batches of a client's round, step by step, as places among its own samples."""


def as_they_lie(federation: Federation) -> Orders:
    def order(client: int) -> list[np.ndarray]:
        places = np.arange(federation.size(client))
        return federation.epochs * np.split(places, range(federation.batch, len(places), federation.batch))

    return order


def as_fedbraid_draws(federation: Federation, seed: int, number: int) -> Orders:
    work = LocalWork(batch=federation.batch, epochs=federation.epochs)

    def order(client: int) -> list[np.ndarray]:
        plan = make_plan(
            fb.chain("fedavg"),
            work,
            federation.size(client),
            federation.batch,
            seed=seed,
            round=number,
            client=client,
        )
        return [places[:count] for places, count in zip(plan.positions, plan.counts, strict=True)]

    return order


def one_round(federation: Federation, number: int, orders: Orders) -> list[Tensor]:
    """The mean of the clients' models, weighted by their samples."""
    cohort = federation.cohort(number)
    total = sum(map(federation.size, cohort))
    mean = [torch.zeros_like(p, dtype=torch.float64) for p in federation.start]
    for client in cohort:
        model = federation.network().double()
        x, y = federation.samples(client)
        for places in orders(client):
            index = torch.from_numpy(places)
            loss = nn.functional.cross_entropy(model(x[index].double()), y[index])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter -= federation.lr * gradient
        for summed, parameter in zip(mean, model.parameters(), strict=True):
            summed += federation.size(client) / total * parameter.detach()
    return mean
