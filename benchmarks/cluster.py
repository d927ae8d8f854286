"""Rounds on a Ray cluster: their time on one, two and four workers, the driver's part of it, and what travels.

    python benchmarks/cluster.py [--rounds 15] [--only lenet] [--json FILE]
    python benchmarks/cluster.py --drive [--rounds 15]
    python benchmarks/cluster.py --clients 1000000

Workers are processes on this machine, one thread each, in a Ray of the script's own; beside them runs the engine of one
machine (`here`). Rounds of all go in turn, and medians are taken; nothing is evaluated. `driver` is the time in which
the driver does not wait for workers: what it computes, packs and sends. `clients` is how long the slowest worker trains
by its own clock. `store` is what Ray says was put into its object stores in a round, on all nodes.

With --drive workers have next to nothing to do, and there are up to sixteen: what a round costs the driver for each.
With --clients nothing is trained: what the driver does, and holds, for so many of them and a thousand workers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]  # the fedbraid beside this script, whatever else is installed

import numpy as np  # noqa: E402
import ray  # noqa: E402
from ray._private.internal_api import get_memory_info_reply, get_state_from_address  # noqa: E402

from fedbraid.config.schema import from_dict  # noqa: E402
from fedbraid.core import sampling  # noqa: E402
from fedbraid.data.dataset import Dataset, Partition, Split  # noqa: E402
from fedbraid.engines.ray.cluster import Cluster  # noqa: E402
from fedbraid.engines.ray.placement import dealt  # noqa: E402
from fedbraid.training.run_spec import RunSpec  # noqa: E402
from fedbraid.training.simulation import Simulation, build_simulation  # noqa: E402
from fedbraid.training.user_objects import UserObjects  # noqa: E402

WARM_UP = 3


@dataclass(frozen=True)
class Workload:
    model: str
    shape: tuple[int, ...]
    clients: int
    samples: int  # of each
    options: dict[str, Any]
    local: dict[str, Any]


WORKS = {
    "mlp": Workload("mlp", (64,), 64, 60, {"hidden": [200]}, {"batch": 20, "epochs": 2}),
    "wide": Workload("mlp", (64,), 16, 60, {"hidden": [4000]}, {"batch": 20, "epochs": 1}),
    "lenet": Workload("lenet", (1, 28, 28), 16, 60, {}, {"batch": 20, "epochs": 1}),
}
LITTLE = Workload("mlp", (8,), 64, 4, {"hidden": [2000]}, {"batch": 4, "steps": 1})


@dataclass
class Rounds:
    """What was measured of each round, in seconds and bytes."""

    wall: list[float]
    driver: list[float]
    clients: list[float]
    store: list[int]


@dataclass(frozen=True)
class Row:
    work: str
    method: str
    workers: int  # 0 = the engine of one machine
    wall_ms: float
    driver_ms: float
    clients_ms: float
    store_bytes: float
    parameters: int


def federation(work: Workload, method: str, workers: int) -> Simulation:
    rng = np.random.default_rng(0)
    n = work.clients * work.samples
    x, y = rng.normal(size=(n, *work.shape)).astype(np.float32), rng.integers(0, 10, n)
    data = Dataset("made-up", Split(x, y), Split(x[:10], y[:10]), 10)
    owners = Partition(tuple(np.split(rng.permutation(n), work.clients)))
    config = {
        "method": method,
        "rounds": 10_000,
        "model": {"name": work.model, **work.options},
        "local": work.local,
        "optimizer": {"lr": 0.01},
        "evaluate": {"every": 10_000},
        "engine": {"kind": "ray", "workers": workers, "device": "cpu"}
        if workers
        else {"device": "cpu", "kind": "auto"},
    }
    return build_simulation(RunSpec.of(from_dict(config), UserObjects(data, owners)))


def measured(simulation: Simulation) -> Callable[[Rounds], None]:
    """One more round of a federation, noted."""
    engine = simulation.engine
    if not isinstance(engine, Cluster):

        def here(rounds: Rounds) -> None:
            began = perf_counter()
            simulation.advance()
            for times in (rounds.wall, rounds.clients):
                times.append(perf_counter() - began)

        return here
    waited = 0.0
    get, put = engine.crew.remote.get, created_bytes

    def waiting(reference: Any) -> Any:
        nonlocal waited
        began = perf_counter()
        try:
            return get(reference)
        finally:
            waited += perf_counter() - began

    engine.crew.remote.get = waiting  # type: ignore[method-assign]

    def there(rounds: Rounds) -> None:
        nonlocal waited
        before, waited = put(), 0.0
        began = perf_counter()
        simulation.advance()
        engine.settle()  # what clients keep is in files
        rounds.wall.append(perf_counter() - began)
        rounds.driver.append(rounds.wall[-1] - waited)
        assert engine.asked is not None
        rounds.clients.append(max(told.seconds for told in engine.asked.told.values()))
        rounds.store.append(put() - before)

    return there


def created_bytes() -> int:
    """What was put into the object stores of all nodes so far."""
    state = get_state_from_address(ray.get_runtime_context().gcs_address)
    return int(get_memory_info_reply(state).store_stats.cumulative_created_bytes)


@contextmanager
def side_by_side(work: Workload, method: str, sizes: list[int]) -> Iterator[dict[int, Simulation]]:
    made = {size: federation(work, method, size) for size in sizes}
    try:
        yield made
    finally:
        for simulation in made.values():
            simulation.engine.close()


def compare(name: str, work: Workload, method: str, sizes: list[int], count: int) -> Iterator[Row]:
    with side_by_side(work, method, sizes) as made:
        steps = {size: measured(simulation) for size, simulation in made.items()}
        noted = {size: Rounds([], [], [], []) for size in sizes}
        for k in range(WARM_UP + count):
            for size, step in steps.items():
                step(noted[size] if k >= WARM_UP else Rounds([], [], [], []))
        for size, rounds in noted.items():
            yield Row(
                name,
                method,
                size,
                *(1e3 * median(times or [0.0]) for times in (rounds.wall, rounds.driver, rounds.clients)),
                median(rounds.store or [0]),
                made[size].setup.w.numel(),
            )


def bookkeeping(clients: int) -> None:
    """What the driver has of clients beside their samples, of which each has ten here."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before, began = resident(), perf_counter()
    partition = Partition(tuple(np.split(np.arange(10 * clients), clients)))
    split, held = perf_counter() - began, resident() - before
    cost = np.array([len(own) for own in partition.clients], dtype=np.float64)
    began = perf_counter()
    dealt(cost, np.ones(1000))
    placed, began = perf_counter() - began, perf_counter()
    sampling.fixed(clients, 10_000, seed=0, round=0)
    drawn = perf_counter() - began
    print(f"{clients:,} clients: {split:.1f} s and {held / 1e6:.0f} MB to say who owns which samples,")
    print(f"{placed:.1f} s to deal them out to a thousand workers, {1e3 * drawn:.1f} ms to draw 10,000 for a round")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=",".join(WORKS))
    parser.add_argument("--methods", default="fedavg,scaffold")
    parser.add_argument("--drive", action="store_true")
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.clients:
        bookkeeping(args.clients)
        return
    sizes = [1, 4, 16] if args.drive else [0, 1, 2, 4]
    ray.init(address="local", num_cpus=sum(sizes), include_dashboard=False, log_to_driver=False, logging_level="error")
    rows: list[Row] = []
    print(f"{'work':8} {'method':9} {'workers':>7} {'round':>9} {'clients':>9} {'driver':>9} {'store':>11}")
    works = {"little": LITTLE} if args.drive else {name: WORKS[name] for name in args.only.split(",")}
    for name, work in works.items():
        for method in args.methods.split(","):
            for row in compare(name, work, method, sizes, args.rounds):
                rows.append(row)
                print(
                    f"{name:8} {method:9} {row.workers or 'here':>7} {row.wall_ms:6.1f} ms {row.clients_ms:6.1f} ms "
                    f"{row.driver_ms:6.1f} ms {row.store_bytes / 1e6:8.2f} MB",
                    flush=True,
                )
            print(f"         {row.parameters:,} parameters, {4e-6 * row.parameters:.2f} MB")
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    ray.shutdown()


if __name__ == "__main__":
    main()
