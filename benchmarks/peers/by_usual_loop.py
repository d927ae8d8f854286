"""Federated averaging as it is usually written: a copy, a DataLoader and an optimiser for each client."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from peers.federation import Federation, load
from peers.wire import Asked, Wire, asked


def train_a_copy(server: nn.Module, samples: TensorDataset, federation: Federation, given: Asked) -> nn.Module:
    model = copy.deepcopy(server)
    optimizer = torch.optim.SGD(model.parameters(), lr=federation.lr)
    loader = DataLoader(samples, batch_size=federation.batch, shuffle=not given.in_order)
    for _ in range(federation.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to(given.device)), y.to(given.device)).backward()
            optimizer.step()
    return model


def main() -> None:
    given = asked()
    federation = load(given.federation)  # the data stays in the computer's memory, as it usually does
    server = federation.network().to(given.device)
    sets = [TensorDataset(*federation.samples(client)) for client in federation.clients]
    for number in Wire(given.device).rounds(lambda: list(server.parameters())):
        cohort = federation.cohort(number)
        trained = [train_a_copy(server, sets[client], federation, given).state_dict() for client in cohort]
        shares = [federation.size(client) / sum(map(federation.size, cohort)) for client in cohort]
        server.load_state_dict(
            {key: sum(share * state[key] for share, state in zip(shares, trained, strict=True)) for key in trained[0]}
        )


if __name__ == "__main__":
    main()
