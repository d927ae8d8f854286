"""Whole rounds of a stack on a GPU, convolutions by the library (grouped) and by kernels of our own, in turn.

    python benchmarks/long_rounds.py [--rounds 7] [--device cuda]

Federated averaging without evaluation, TF32 allowed for both; samples a second from the median round.
"""

import argparse
from statistics import median
from time import perf_counter

import torch

from fedbraid.benchmark import images
from fedbraid.config.schema import from_dict
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.simulation import Simulation, build_simulation
from fedbraid.training.user_objects import UserObjects

WORKLOADS = (  # network, shape, classes, clients, samples of each, batch, epochs
    ("lenet", (1, 28, 28), 10, 10, 1920, 64, 4),
    ("lenet", (1, 28, 28), 10, 100, 640, 64, 2),
    ("cnn", (3, 32, 32), 100, 10, 1000, 50, 2),
    ("cnn", (3, 32, 32), 100, 50, 500, 50, 1),
)


def federation(workload: tuple, device: str, kernels: bool) -> Simulation:
    network, shape, classes, clients, each, batch, epochs = workload
    config = from_dict(
        {
            "rounds": 10**6,
            "partition": {"name": "iid", "clients": clients},
            "model": {"name": network},
            "local": {"batch": batch, "epochs": epochs},
            "optimizer": {"lr": 0.01},
            "evaluate": {"every": 10**6},
            "engine": {"kind": "stack", "device": device, "precision": "high"},
        }
    )
    simulation = build_simulation(RunSpec.of(config, UserObjects(data=images(shape, classes, clients, each))))
    simulation.engine.precision = "high" if kernels else "highest"
    simulation.engine.__post_init__()  # the stack anew, with or without the kernels
    return simulation


def timed(simulation: Simulation, device: str) -> float:
    """Seconds a sample of one round."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    began = perf_counter()
    samples = simulation.advance()["backward_samples"]
    wait()
    return (perf_counter() - began) / samples


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--rounds", type=int, default=7)
    asked.add_argument("--device", default="cuda")
    given = asked.parse_args()
    torch.backends.cudnn.benchmark = True
    print(f"{'network':8} {'clients':>7} {'library':>12} {'ours':>12} {'ratio':>6}")
    for workload in WORKLOADS:
        pair = [federation(workload, given.device, kernels) for kernels in (False, True)]
        times: list[list[float]] = [[], []]
        for simulation in pair:
            timed(simulation, given.device), timed(simulation, given.device)  # programs are made and captured
        for _ in range(given.rounds):
            for simulation, kept in zip(pair, times, strict=True):
                kept.append(timed(simulation, given.device))
        library, ours = (1 / median(kept) for kept in times)
        print(f"{workload[0]:8} {workload[3]:7} {library:12,.0f} {ours:12,.0f} {ours / library:6.2f}", flush=True)


if __name__ == "__main__":
    main()
