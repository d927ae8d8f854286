"""Five seeds of one method in one stack, and one after the other, in turn.

    python benchmarks/many_runs.py [--seeds 5] [--rounds 9] [--device cpu]

Whole rounds of federated averaging, each evaluated. `together` and `separate` are the medians of the time that one
round of all seeds takes; making and capturing programs is not counted.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any

import torch

from fedbraid import data
from fedbraid.benchmark import images
from fedbraid.config.schema import from_dict
from fedbraid.data.dataset import Dataset, Split
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.shared_stack import SharedStack
from fedbraid.training.simulation import Simulation, build_simulation
from fedbraid.training.user_objects import UserObjects

BURST = 3
"""Rounds that are timed as one: on a GPU a run starts the next round before it reads what came of the last."""


def with_test(dataset: Dataset, samples: int = 2000) -> Dataset:
    """With the first training samples as a test set: what they show does not matter here."""
    return replace(dataset, test=Split(dataset.train.x[:samples], dataset.train.y[:samples]))


WORKLOADS: dict[str, tuple[Callable[[], Dataset], dict[str, Any]]] = {
    "mlp, digits, 10 clients": (lambda: data.load("digits"), {"model": {"name": "mlp"}}),
    "logistic, SYNTHETIC, 10 of 200 ragged clients": (
        lambda: data.load("synthetic", clients=200, max_size=1000),
        {
            "partition": {"name": "natural"},
            "model": {"name": "logistic"},
            "sampling": {"clients": 10},
            "local": {"batch": 64, "epochs": 10},
        },
    ),
    "mlp 28×28, 10 clients × 600": (
        lambda: with_test(images((1, 28, 28), 10, 10, 600)),
        {
            "partition": {"name": "iid"},
            "model": {"name": "mlp", "hidden": [200]},
            "local": {"batch": 64, "epochs": 2},
        },
    ),
    "lenet 28×28, 10 clients × 600": (
        lambda: with_test(images((1, 28, 28), 10, 10, 600)),
        {"partition": {"name": "iid"}, "model": {"name": "lenet"}, "local": {"batch": 64, "epochs": 2}},
    ),
    "lenet 28×28, 10 clients × 600, 20 epochs": (
        lambda: with_test(images((1, 28, 28), 10, 10, 600)),
        {"partition": {"name": "iid"}, "model": {"name": "lenet"}, "local": {"batch": 64, "epochs": 20}},
    ),
}


def federations(dataset: Dataset, settings: dict[str, Any], seeds: int, device: str) -> list[Simulation]:
    engine = {"device": device, "kind": "stack", "precision": "high" if device == "cuda" else "highest"}
    made: list[Simulation] = []
    for seed in range(seeds):
        config = from_dict({**settings, "rounds": 10**6, "seed": seed, "optimizer": {"lr": 0.01}, "engine": engine})
        made.append(build_simulation(RunSpec.of(config, UserObjects(data=dataset)), beside=made[0] if made else None))
    return made


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--seeds", type=int, default=5)
    asked.add_argument("--rounds", type=int, default=9)
    asked.add_argument("--device", default="cpu")
    given = asked.parse_args()
    wait = torch.cuda.synchronize if given.device == "cuda" else lambda: None
    print(f"{'workload':46} {'together':>9} {'separate':>9} {'ratio':>6}")
    for name, (dataset, settings) in WORKLOADS.items():
        if given.device == "cpu" and settings["model"]["name"] == "lenet":
            continue  # convolutions run in the loop there
        held = dataset()
        group = SharedStack(federations(held, settings, given.seeds, given.device))
        alone = federations(held, settings, given.seeds, given.device)
        ways: dict[str, Callable[[], Any]] = {
            "together": lambda group=group: [group.launch() for _ in range(BURST)],
            "separate": lambda alone=alone: [e.launch() for e in alone for _ in range(BURST)],
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(-3, given.rounds):  # the first rounds make programs and capture them
            for way, one in ways.items():
                wait()
                began = perf_counter()
                for lines in one():
                    lines()
                wait()
                times[way] += [(perf_counter() - began) / BURST] if number >= 0 else []
        together, separate = (median(times[way]) for way in ways)
        print(f"{name:46} {1e3 * together:6.1f} ms {1e3 * separate:6.1f} ms {separate / together:6.2f}", flush=True)


if __name__ == "__main__":
    main()
