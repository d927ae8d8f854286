"""What analyses inside a run cost: rounds with and without them, in turn.

    python benchmarks/analyses.py [--rounds 60] [--device cpu|cuda]

The watched run looks in every round (`analysis.every = 1`; the default is ten) by every analysis that runs inside a
run, and every round is evaluated. On a CPU the processor's time is counted, on a GPU the clock's. What is printed are
the median round and the median difference between two rounds in a row, one of each run.
"""

import argparse
from statistics import median
from time import perf_counter, process_time

import torch

from fedbraid.analyses.index import WATCHES
from fedbraid.benchmark import images
from fedbraid.config.schema import from_dict
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.simulation import Simulation, build_simulation
from fedbraid.training.user_objects import UserObjects

WORKLOADS = (  # network, shape, clients, samples of each, batch, epochs
    ("logistic", (1, 28, 28), 100, 20, 32, 1),
    ("mlp", (1, 28, 28), 10, 100, 32, 1),
    ("lenet", (1, 28, 28), 10, 100, 32, 1),
    ("cnn", (3, 32, 32), 10, 50, 50, 1),
)


def federation(workload: tuple, device: str, analyses: list[str]) -> Simulation:
    network, shape, clients, each, batch, epochs = workload
    kind = "loop" if device == "cpu" and network in ("lenet", "cnn") else "stack"
    config = from_dict(
        {
            "rounds": 10**6,
            "partition": {"name": "iid", "clients": clients},
            "model": {"name": network},
            "local": {"batch": batch, "epochs": epochs},
            "optimizer": {"lr": 0.01},
            "engine": {"device": device, "kind": kind},
            "analyses": analyses,
            "analysis": {"every": 1},
        }
    )
    return build_simulation(RunSpec.of(config, UserObjects(data=images(shape, 10, clients, each))))


def timed(simulation: Simulation, device: str) -> float:
    if device == "cpu":
        began = process_time()
        simulation.advance()
        return process_time() - began
    torch.cuda.synchronize()
    began = perf_counter()
    simulation.advance()
    torch.cuda.synchronize()
    return perf_counter() - began


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--rounds", type=int, default=60)
    asked.add_argument("--device", default="cpu")
    given = asked.parse_args()
    names = [watch.name for watch in WATCHES]
    print(f"{', '.join(names)} in every round")
    for workload in WORKLOADS:
        plain, watched = (federation(workload, given.device, analyses) for analyses in ([], names))
        times, more = [], []
        for turn in range(given.rounds + 2):
            first, second = (plain, watched) if turn % 2 else (watched, plain)
            took = {id(run): timed(run, given.device) for run in (first, second)}
            if turn >= 2:  # the first ones make programs
                times.append(took[id(plain)])
                more.append(took[id(watched)] - took[id(plain)])
        round, look = median(times), median(more)
        shown = f"{1000 * round:8.1f} ms a round, {1000 * look:6.2f} ms a look: {look / round:+.1%}"
        print(f"{workload[0]:>10}, {workload[2]:>3} clients {shown}", flush=True)


if __name__ == "__main__":
    main()
