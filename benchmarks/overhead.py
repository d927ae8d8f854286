"""What a round takes beyond its clients' steps: planning, handing out, collecting, averaging, bookkeeping.

    python benchmarks/overhead.py [--only synthetic-logistic,lenet] [--rounds 30] [--patient] [--json FILE]

The workloads are those of peers.py, by the engine that `auto` takes; no evaluation. Rounds come in visits of a third
of a second or more; a visit during which other programs took more than --busy of the cores is thrown away and repeated
for some time, or with --patient for as long as it takes.

*The loop*: the seconds of a round less those that its slowest worker spends with clients. What the host does beside
the workers counts by its share of the cores. Of the time with clients, `batches` is what is not a local step: looking
up samples, beginning and ending.

*Compiled*: every round is run twice. Once as it is, in which clients train while the host plans ahead; and once in
which they train alone, on all cores, and the host waits. The overhead is the first one's seconds less what clients
take alone in the second.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time, thread_time
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]  # the fedbraid beside this script, whatever else is installed

from peers import machine, work  # noqa: E402
from peers.by_fedbraid import simulation  # noqa: E402

from fedbraid.core.client_step import LocalJob  # noqa: E402
from fedbraid.engines.codegen.machine import CompiledTraining  # noqa: E402
from fedbraid.engines.cpu import usable_cores  # noqa: E402
from fedbraid.engines.loop import Loop  # noqa: E402
from fedbraid.training.simulation import Simulation  # noqa: E402

GOALS = {"synthetic-logistic": 2.0, "lenet": 5.0, "cnn": 10.0}
"""Milliseconds."""
WARM_UP = 3
VISIT = 0.3
"""Seconds at least."""
TRIES = 20
"""Visits in a row that were disturbed, until we give up."""


@dataclass(frozen=True)
class Round:
    """Seconds of one round."""

    wall: float
    clients: float  # that clients take, if nothing else is done
    overhead: float
    cpu: float  # of all threads, but for those with clients
    batches: float = 0.0  # with clients, but not in a step; of the slowest worker


class Stopwatch:
    """Seconds, on the clock and of CPU, that each thread spends in some functions."""

    def __init__(self) -> None:
        self.clock: dict[tuple[str, int], float] = defaultdict(float)
        self.cpu: dict[tuple[str, int], float] = defaultdict(float)

    def around(self, name: str, f: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **named: Any) -> Any:
            here = name, threading.get_ident()
            began, busy = perf_counter(), thread_time()
            try:
                return f(*args, **named)
            finally:
                self.clock[here] += perf_counter() - began
                self.cpu[here] += thread_time() - busy

        return timed

    def slowest(self, name: str) -> float:
        return max((seconds for (what, _), seconds in self.clock.items() if what == name), default=0.0)

    def busy(self, name: str) -> float:
        return sum(seconds for (what, _), seconds in self.cpu.items() if what == name)


@contextmanager
def replaced(owner: type, name: str, value: Callable[..., Any]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def timed(made: Simulation) -> tuple[float, float]:
    """Seconds of a round, on the clock and of CPU."""
    began, busy = perf_counter(), process_time()
    made.advance()
    return perf_counter() - began, process_time() - busy


def in_the_loop(made: Simulation) -> Round:
    watch = Stopwatch()
    with (
        replaced(Loop, "_train_one", watch.around("client", Loop._train_one)),
        replaced(LocalJob, "step", watch.around("step", LocalJob.step)),
        replaced(Simulation, "plan_ahead", watch.around("ahead", Simulation.plan_ahead)),
    ):
        wall, busy = timed(made)
    clients = watch.slowest("client")
    overhead = wall - clients + watch.busy("ahead") / usable_cores()
    return Round(wall, clients, overhead, busy - watch.busy("client"), clients - watch.slowest("step"))


def compiled(made: Simulation) -> Round:
    train, alone, alone_cpu = CompiledTraining.__call__, 0.0, 0.0

    def apart(self: CompiledTraining, starts: Any, stops: Any, pointers: Any, meanwhile: Callable[[], None]) -> None:
        nonlocal alone, alone_cpu
        began, busy = perf_counter(), process_time()
        train(self, starts, stops, pointers)
        alone, alone_cpu = alone + perf_counter() - began, alone_cpu + process_time() - busy
        meanwhile()

    start = made.server
    wall, busy = timed(made)
    made.server = start  # plans of this round are gone: they are made again, and the next one's meanwhile
    with replaced(CompiledTraining, "__call__", apart):
        timed(made)
    return Round(wall, alone, wall - alone, busy - alone_cpu)


def measure(part: work.Workload, given: argparse.Namespace) -> list[Round]:
    """Rounds that nobody disturbed."""
    made = simulation(work.federation(part, 1), "cpu", "auto")
    one = {"loop": in_the_loop, "compiled": compiled}[made.engine.kind]
    for _ in range(WARM_UP):
        one(made)
    kept: list[Round] = []
    disturbed = 0
    while len(kept) < given.rounds and (given.patient or disturbed < TRIES):
        if given.patient:
            machine.wait_for_quiet(given.busy)
        before, visit = machine.Moment.now([]), []
        while sum(r.wall for r in visit) < VISIT and len(kept) + len(visit) < given.rounds:
            visit.append(one(made))
        quiet = before.others_until(machine.Moment.now([])) <= given.busy
        kept, disturbed = (kept + visit, 0) if quiet else (kept, disturbed + 1)
    return kept


def main() -> None:
    names = [*GOALS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(names), help=f"workloads, with commas between: {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--busy", type=float, default=0.15, help="share of the cores that others may take")
    parser.add_argument("--patient", action="store_true", help="wait until the machine is quiet, however long")
    parser.add_argument("--small", action="store_true", help="a few steps a round: tries things out, measures nothing")
    parser.add_argument("--json", type=Path, help="a file for all rounds")
    given = parser.parse_args()
    found: dict[str, list[Round]] = {}
    print(", ".join(f"{key} {value}" for key, value in machine.describe("cpu").items()))
    print(
        f"{'ms a round':<20} {'wall':>9} {'clients':>9} {'batches':>8} {'overhead: median':>17} {'quartiles':>13} ",
        end="",
    )
    print(f"{'least':>7} {'goal':>5} {'CPU beside':>11}")
    for part in work.WORKS:
        if part.name not in given.only.split(","):
            continue
        found[part.name] = each = measure(part.small() if given.small else part, given)
        if len(each) < 2:
            print(f"{part.name:<20} the machine was never quiet")
            continue
        wall, clients, batches, overhead, cpu = (
            [1e3 * getattr(r, key) for r in each] for key in ("wall", "clients", "batches", "overhead", "cpu")
        )
        low, middle, high = quantiles(overhead, n=4)
        print(
            f"{part.name:<20} {median(wall):>9.1f} {median(clients):>9.1f} {median(batches):>8.1f} {middle:>17.2f} "
            f"{f'{low:.2f}–{high:.2f}':>13} {min(overhead):>7.2f} {GOALS[part.name]:>5.0f} {median(cpu):>11.2f} "
            f"{len(each):>5}",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps({name: [asdict(r) for r in each] for name, each in found.items()}, indent=1))


if __name__ == "__main__":
    main()
