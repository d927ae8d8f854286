"""FedAvg as a plain PyTorch loop: what the library does underneath, and the same model to rounding.

Every round, each client copies the global model, takes gradient steps on its own samples, and returns its weights;
the server averages them by the number of samples. With whole data sets as batches nothing is random, so that the loop
and `fb.run` can be compared number by number.
"""

import copy

import torch
from torch.nn.functional import cross_entropy

import fedbraid as fb
from fedbraid.data import load, make_partition

ROUNDS, EPOCHS, RATE = 10, 5, 0.1


class Net(torch.nn.Module):
    """A network with one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(64, 32)
        self.head = torch.nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(x.flatten(1)).relu())


def train_client(model, x, y):
    """Return the weights after local training that begins with `model`, which stays as it is."""
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), lr=RATE)
    for _ in range(EPOCHS):  # the batch is the client's whole data set: one step is an epoch
        optimizer.zero_grad()
        cross_entropy(local(x), y).backward()
        optimizer.step()
    return local.state_dict()


def average(states, sizes):
    """Return the mean of the clients' weights, by their numbers of samples."""
    total = sum(sizes)
    return {name: sum(n / total * s[name] for n, s in zip(sizes, states, strict=True)) for name in states[0]}


@torch.no_grad()
def accuracy(model, x, y):
    """Return the share of samples whose most probable class is right."""
    return (model(x).argmax(1) == y).float().mean().item()


def fedavg(model, clients, test):
    """Train `model` on the clients' data, in place."""
    for number in range(1, ROUNDS + 1):
        states = [train_client(model, x, y) for x, y in clients]
        model.load_state_dict(average(states, [len(y) for _, y in clients]))
        print(f"round {number}: accuracy {accuracy(model, *test):.1%}")


def tensors(split, mean, std):
    """Return normalised inputs and labels."""
    return (torch.tensor(split.x).float() - mean) / std, torch.tensor(split.y).long()


digits = load("digits")
partition = make_partition(digits, "dirichlet", 10, seed=0, beta=0.1)
train, test = (tensors(split, digits.mean[0], digits.std[0]) for split in (digits.train, digits.test))
clients = [(train[0][own], train[1][own]) for own in map(torch.tensor, partition.clients)]

torch.manual_seed(0)
start = Net()
plain = copy.deepcopy(start)
fedavg(plain, clients, test)

run = fb.run(
    "fedavg",
    data=digits,
    partition=partition,
    model=start,  # an instance: the run begins with its weights
    rounds=ROUNDS,
    local={"epochs": EPOCHS, "batch": 0},
    optimizer={"lr": RATE, "momentum": 0.0, "weight_decay": 0.0},
)
pairs = zip(plain.parameters(), run.model.parameters(), strict=True)
difference = max((a - b).abs().max().item() for a, b in pairs)
print(f"fb.run: accuracy {run.accuracy:.1%}; largest difference between two weights {difference:.0e}")
assert difference < 1e-4
