"""No federation at all: one model, batches that lie ready, torch's optimiser. As many steps as a round has."""

from __future__ import annotations

import torch
from torch import nn

from peers.federation import load
from peers.wire import Wire, asked


def main() -> None:
    given = asked()
    federation = load(given.federation, given.device)
    batches = [federation.batches(client) for client in federation.clients]
    model = federation.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=federation.lr)
    for number in Wire(given.device).rounds(lambda: list(model.parameters())):
        for client in federation.cohort(number):
            for _ in range(federation.epochs):
                for x, y in batches[client]:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()


if __name__ == "__main__":
    main()
