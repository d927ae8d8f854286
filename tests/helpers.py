"""Small federations in float64, and what they hold after some rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbraid.config.schema import Config, from_dict
from fedbraid.core.chain import Chain
from fedbraid.core.strand import Strand
from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.training.run_directory import RunDirectory
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.simulation import Simulation, build_simulation
from fedbraid.training.user_objects import UserObjects

SIZES = (5, 1, 12, 7, 3, 9)
"""Clients of very different sizes; one has a single sample."""


def toy(
    sizes: Sequence[int] = SIZES,
    shape: tuple[int, ...] = (4,),
    classes: int = 3,
    *,
    seed: int = 0,
    task: Any = "classification",
    pixels: bool = False,
) -> tuple[Dataset, Partition]:
    """Random data whose samples lie scattered over the clients."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)

    def split(count: int) -> Split:
        x = rng.integers(0, 256, (count, *shape), dtype=np.uint8) if pixels else rng.normal(size=(count, *shape))
        y = rng.integers(0, classes, count) if task == "classification" else rng.normal(size=count)
        return Split(x, y)

    scale: dict[str, Any] = {"mean": (120.0,), "std": (70.0,)} if pixels else {}
    dataset = Dataset("toy", split(n), split(20), classes if task == "classification" else 1, task, **scale)
    owners = np.split(rng.permutation(n), np.cumsum(sizes)[:-1])
    return dataset, Partition(tuple(owners))


def federation(
    method: str | Strand | Chain = "fedavg",
    *,
    data: tuple[Dataset, Partition] | None = None,
    module: nn.Module | None = None,
    own: Sequence[type[Strand]] = (),
    directory: Any = None,
    **settings: Any,
) -> Simulation:
    """A federation on the CPU, in float64 unless it is asked for otherwise; settings are the configuration's."""
    dataset, partition = data or toy()
    chain = Chain((method,)) if isinstance(method, Strand) else method
    if isinstance(chain, str):
        settings["method"] = chain
    engine = {"device": "cpu", "dtype": "float64", "kind": "stack", "workers": 1} | settings.pop("engine", {})
    config: Config = from_dict(
        {
            "rounds": 3,
            "model": {"name": "mlp", "hidden": [5]},
            "local": {"batch": 4, "epochs": 2},
            "engine": engine,
            **settings,
        }
    )
    objects = UserObjects(dataset, partition, module, chain if isinstance(chain, Chain) else None, tuple(own))
    return build(config, objects, directory)


def build(
    config: Config, objects: UserObjects | None = None, directory: Any = None, beside: Simulation | None = None
) -> Simulation:
    """The simulation of a configuration; `directory` is where clients' states go."""
    spec = RunSpec.of(config, objects, None if directory is None else StatesIn(directory))
    return build_simulation(spec, beside)


class StatesIn(RunDirectory):
    """No run, but a place for the states of clients."""

    def __init__(self, states: Path) -> None:
        super().__init__(states)
        self.states = states


def advanced(simulation: Simulation, rounds: int | None = None) -> Simulation:
    """The same federation some rounds later; to its end unless a number is given."""
    for _ in range(simulation.config.rounds if rounds is None else rounds):
        simulation.advance()
    return simulation


def held(simulation: Simulation) -> dict[str, Tensor]:
    """Everything that the next round depends on: model, buffers, the server's and every client's state."""
    server, ids = simulation.server, range(len(simulation.clients))
    tensors = {"w": server.w, "buffers": server.buffers}
    tensors |= {f"server/{s}/{key}": value for s, tree in server.kept.items() for key, value in tree.items()}
    for s, tree in simulation.store.read(ids).items():
        tensors |= {f"clients/{s}/{key}": value for key, value in tree.items()}
    return {key: value.cpu() for key, value in tensors.items()}


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference between two collections of tensors of the same names and shapes."""
    assert one.keys() == other.keys()
    assert all(one[key].shape == other[key].shape for key in one)
    return max(float((one[key] - other[key]).abs().max()) if one[key].numel() else 0.0 for key in one)


def identical(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
