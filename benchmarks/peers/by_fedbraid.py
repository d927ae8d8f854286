"""FedBraid, put together as `fedbraid run` does, round by round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

import fedbraid as fb
from fedbraid import models
from fedbraid.config.schema import from_dict
from fedbraid.models.convolutional import PooledConv2d
from fedbraid.training.federation import Line
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.simulation import Simulation, build_simulation
from fedbraid.training.user_objects import UserObjects
from peers.federation import Federation, fill, load
from peers.wire import Wire, asked

SEED = 0
PERIOD = 10**4
"""Rounds after which cohorts recur here."""


class TwoConvolutions(nn.Module):
    """`peers.networks.TwoConvolutions` for FedBraid: it also says what its head receives."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(shape[0], 32, 3)
        self.second = PooledConv2d(32, 64, 3)
        self.hidden = nn.Linear(64 * (shape[1] // 2 - 2) * (shape[2] // 2 - 2), 128)
        self.head = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> fb.Outputs:
        x = self.second(self.first(x).relu()).flatten(1)
        x = self.hidden(x).relu()
        return fb.Outputs(self.head(x), x)


def simulation(federation: Federation, device: str, engine: str) -> Simulation:
    name, shape, classes = federation.model, federation.shape, federation.classes
    module = TwoConvolutions(shape, classes) if name == "two-convolutions" else models.build(name, shape, classes)
    fill(list(module.parameters()), federation.start)
    x, y = federation.x.numpy(), federation.y.numpy()
    dataset = fb.Dataset("the peers' file", fb.Split(x, y), fb.Split(x[:2], y[:2]), classes)
    partition = fb.Partition(tuple(np.split(np.arange(len(y)), federation.ends[:-1])))
    config = from_dict(
        {
            "rounds": 10**9,
            "seed": SEED,
            "sampling": {"clients": federation.cohorts.shape[1]},
            "local": {"batch": federation.batch, "epochs": federation.epochs},
            "optimizer": {"lr": federation.lr},
            "evaluate": {"every": 10**9},
            "engine": {"kind": engine, "device": device, "precision": "high"},
        }
    )
    return build_simulation(RunSpec.of(config, UserObjects(dataset, partition, module)))


def main() -> None:
    given = asked()
    torch.backends.cudnn.benchmark = False  # as FedBraid runs for its users
    made = simulation(load(given.federation), given.device, given.engine)

    def parameters() -> list[Tensor]:
        return list(made.model.layout.views(made.server.w).values())

    repeats = given.device == "cpu"  # a visit repeats its round: the same cohort again, but the next plans, as in a run
    if repeats:
        sampled = made._made_cohort
        made._made_cohort = lambda place: sampled(place % PERIOD)
        made.coming = lambda: made.trainees(made.server.round + PERIOD)
    unread = list[Line]()
    for turn, number in enumerate(Wire(given.device).rounds(parameters)):
        made.server = replace(made.server, round=number + turn * PERIOD * repeats)
        unread.append(made.launch())
        while len(unread) > (given.device == "cuda"):  # lines of the log are read a round late there, as in a run
            unread.pop(0)()


if __name__ == "__main__":
    main()
