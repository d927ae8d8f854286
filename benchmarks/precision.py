"""What coarser products cost in accuracy: the same runs with each engine.precision, on a GPU.

    python benchmarks/precision.py [--data fashion-mnist] [--model lenet] [--rounds 30] [--seeds 3] [--data-dir FOLDER]

Federated averaging over ten clients under a Dirichlet split with beta 0.5, two local epochs, batch 64, momentum 0.9.
Prints the last accuracy, mean and standard deviation over the seeds, its difference from float32 seed by seed, and the
time of a round (after the first, which makes programs).
"""

import argparse
from statistics import mean, median, stdev

from fedbraid import run

PRECISIONS = "highest", "high", "medium"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--data", default="fashion-mnist")
    asked.add_argument("--model", default="lenet")
    asked.add_argument("--rounds", type=int, default=30)
    asked.add_argument("--seeds", type=int, default=3)
    asked.add_argument("--data-dir")
    asked.add_argument("--device", default="cuda")
    given = asked.parse_args()
    settings = {
        "data": given.data,
        "model": given.model,
        "rounds": given.rounds,
        "partition": {"name": "dirichlet", "clients": 10, "beta": 0.5},
        "local": {"batch": 64, "epochs": 2},
        "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
    }
    print(f"{given.model} on {given.data}, {given.rounds} rounds, {given.seeds} seeds")
    print(f"{'precision':10} {'accuracy':>16} {'minus highest':>20} {'round':>10}")
    exact: list[float] = []
    for precision in PRECISIONS:
        runs = [
            run(
                "fedavg",
                seed=seed,
                data_dir=given.data_dir,
                engine={"device": given.device, "precision": precision},
                **settings,
            )
            for seed in range(given.seeds)
        ]
        found = [100 * one.accuracy for one in runs]
        exact = exact or found
        apart = [f"{a - b:+.2f}" for a, b in zip(found, exact, strict=True)]
        seconds = median(line["seconds"] for one in runs for line in one.rounds[1:])
        spread = stdev(found) if len(found) > 1 else 0.0
        print(
            f"{precision:10} {mean(found):8.2f} ± {spread:4.2f} % {' '.join(apart):>20} {1e3 * seconds:7.1f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
