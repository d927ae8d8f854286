"""FedBraid side by side with its peers: the same model, data, batches and steps, measured in turn.

    python benchmarks/peers.py [--only lenet,cnn] [--contenders fedbraid,pfl-2-malloc] [--repeats 7] [--json FILE]
    python benchmarks/peers.py --check              # do all of them arrive at the same model?
    python benchmarks/peers.py --device cuda --site FOLDER

Every contender is a process of its own, run by its own environment (made on first use, see --envs), that prepares and
then answers `round` with the seconds it took. They are visited in shuffled order; those that wait are stopped. A visit
during which other programs took more than --busy of the cores is thrown away and repeated. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, median, quantiles
from time import perf_counter

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]  # the fedbraid beside this script, whatever else is installed

from peers import machine, reference, work  # noqa: E402
from peers.contenders import Contender, Failed, Running, contenders, environment  # noqa: E402
from peers.environments import RECIPES, CannotMake, make, versions  # noqa: E402
from peers.federation import Federation, save  # noqa: E402

from fedbraid.engines.cpu import usable_cores  # noqa: E402

WARM_UP = 2
"""Rounds before the first that counts."""
VISIT = 0.5
"""Seconds that a visit takes at least: several rounds, where they are short. The median of them counts."""
BURST = {"cpu": 1, "cuda": 20}
"""Rounds that are timed as one: a host may be working on the next before a GPU has ended the last."""
TRIES = 5
"""Visits for one sample, where the machine is busy."""
ANY = 1e9
"""More than others can take."""
TOLERANCE = {"cpu": 1e-3, "cuda": 2e-2}
"""Length of the difference from the reference, as a share of the length of the round's update. TF32 is coarser."""


@dataclass(frozen=True)
class Settings:
    device: str
    repeats: int
    busy: float
    patient: bool
    small: bool
    envs: Path
    site: Path | None
    only: tuple[str, ...]
    contenders: tuple[str, ...]


@dataclass(frozen=True)
class Ready:
    """A contender whose environment is there."""

    contender: Contender
    python: Path
    env: dict[str, str]


@dataclass(frozen=True)
class Row:
    """A contender on a workload. `fedbraid_over` is how many times FedBraid's speed is its speed."""

    work: str
    contender: str
    seconds_a_round: float | None
    samples_per_s: float | None
    spread: float | None  # between quartiles, as a share of the median
    kept: int  # samples that were taken in quiet
    start_s: float  # from the start of its process to the end of its first round
    memory_mb: float
    share_of_peak: float | None = None
    fedbraid_over: float | None = None
    times: list[float] = field(default_factory=list)  # seconds a sample


@dataclass(frozen=True)
class LeftOut:
    work: str
    contender: str
    reason: str


@dataclass(frozen=True)
class Compared:
    """A contender's model after one round beside the reference in float64, both from the same start."""

    work: str
    contender: str
    largest: float  # difference of a parameter
    movement: float  # the largest change of a parameter in that round
    relative: float  # length of the difference / length of the change
    agrees: bool


def main() -> int:
    given, settings = command_line()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nobody is left behind, stopped
    report: dict[str, object] = {
        "command": shlex.join(sys.argv),
        "machine": machine.describe(settings.device),
        "settings": {k: str(v) if isinstance(v, Path) else v for k, v in asdict(settings).items()},
    }
    print(", ".join(f"{key} {value}" for key, value in report["machine"].items()))
    ready, left_out, report["versions"] = prepare(settings)
    if given.check:
        compared = [found for part in works(settings) for found in check(part, ready, settings, left_out)]
        report["check"] = [asdict(found) for found in compared]
        failed = not all(found.agrees for found in compared)
    else:
        windows = 2 if settings.small else 25
        if settings.patient:
            machine.wait_for_quiet(settings.busy)
        report["sgemm"] = peaks = {str(n): machine.sgemm_peak(n, windows) for n in sorted({1, usable_cores()})}
        print("sgemm: " + ", ".join(f"{flops / 1e9:.0f} GFLOP/s with {n} threads" for n, flops in peaks.items()))
        peak = max(peaks.values()) if settings.device == "cpu" else None
        rows = [row for part in works(settings) for row in measure(part, ready, settings, peak, left_out)]
        report["rows"] = [asdict(row) for row in rows]
        failed = False
    report["left_out"] = [asdict(one) for one in left_out]
    for one in left_out:
        print(f"left out: {one.contender} ({one.work}): {one.reason}")
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(failed)


def works(settings: Settings) -> list[work.Workload]:
    chosen = [one for one in work.WORKS if one.name in settings.only]
    return [one.small() for one in chosen] if settings.small else chosen


def prepare(settings: Settings) -> tuple[list[Ready], list[LeftOut], dict[str, dict[str, str]]]:
    """The contenders that were asked for, each with its environment, and those that cannot have one."""
    ready: list[Ready] = []
    left_out: list[LeftOut] = []
    found: dict[str, dict[str, str]] = {}
    failures: dict[str, str] = {}
    cores = 1 if settings.small else usable_cores()  # threads would wait for each other longer than they compute
    for contender in contenders(settings.device, cores):
        if settings.contenders and contender.name not in settings.contenders:
            continue
        key = contender.recipe or "fedbraid"
        recipe = RECIPES.get(key)
        env = environment(contender, settings.site)
        try:
            if key in failures:
                raise CannotMake(failures[key])
            own = recipe and not settings.site
            python = make(recipe, settings.envs) if own else Path(sys.executable)
            found[key] = found.get(key) or versions(python, env, recipe)
            ready.append(Ready(contender, python, env))
        except CannotMake as reason:
            failures[key] = str(reason)
            left_out.append(LeftOut("all", contender.name, str(reason)))
    return ready, left_out, found


@contextmanager
def written(federation: Federation) -> Iterator[tuple[Path, Path]]:
    """The federation as a file, and a folder for whatever else there is."""
    with tempfile.TemporaryDirectory(prefix="fedbraid-peers-") as name:
        folder = Path(name)
        save(federation, folder / "federation.npz")
        yield folder / "federation.npz", folder


def able(part: work.Workload, ready: Sequence[Ready], left_out: list[LeftOut]) -> list[Ready]:
    """Those who have a client for each of their processes in every round."""
    for one in ready:
        if one.contender.processes > part.cohort:
            left_out.append(LeftOut(part.name, one.contender.name, f"a round has only {part.cohort} clients"))
    return [one for one in ready if one.contender.processes <= part.cohort]


def start(one: Ready, file: Path, settings: Settings, *more: str) -> Running:
    given = [str(file), "--device", settings.device, *more]
    return Running(one.contender, one.python, one.env, given, file.parent / f"{one.contender.name}.log")


# --- times


def measure(
    part: work.Workload, ready: Sequence[Ready], settings: Settings, peak: float | None, left_out: list[LeftOut]
) -> list[Row]:
    burst = BURST[settings.device]
    before = max(WARM_UP, burst)
    counted = range(before, before + settings.repeats * burst, burst)
    made = work.federation(part, counted.stop)
    flops = work.flops_per_sample(made)
    a_round = mean(made.samples_of(number) for number in range(before, len(made.cohorts)))
    print(f"\n{part.name}: {a_round:,.0f} samples and {flops * a_round / 1e9:.1f} GFLOP a round", flush=True)
    running: dict[str, Running] = {}
    started: dict[str, float] = {}
    times: dict[str, list[float]] = {}

    def give_up(name: str, reason: Failed) -> None:
        left_out.append(LeftOut(part.name, name, str(reason)))
        if name in running:
            running.pop(name).close()
        print(f"  {name} is left out: {reason}", flush=True)

    with written(made) as (file, _):
        try:
            for one in able(part, ready, left_out):
                name = one.contender.name
                began = perf_counter()
                try:
                    running[name] = start(one, file, settings)
                    running[name].rounds(0)
                    started[name] = perf_counter() - began
                    running[name].rounds(1, before - 1)
                    running[name].pause()
                    times[name] = []
                except Failed as reason:
                    give_up(name, reason)
            order = random.Random(0)
            for number in counted:
                print(f"  turn {(number - before) // burst + 1} of {settings.repeats}", file=sys.stderr, flush=True)
                for name in order.sample(list(running), len(running)):
                    try:
                        took = sample(running[name], number, settings)
                    except Failed as reason:
                        give_up(name, reason)
                        continue
                    if took is not None:
                        times[name].append(took / sum(map(made.samples_of, range(number, number + burst))))
            sizes = {name: one.memory() for name, one in running.items()}
        finally:
            for one in running.values():
                one.close()
    base = median(times["fedbraid"]) if times.get("fedbraid") else None
    rows = [
        row_of(part.name, name, times[name], a_round, started[name], sizes[name], peak and flops / peak, base)
        for name in sizes
    ]
    show(rows)
    return rows


def sample(running: Running, number: int, settings: Settings) -> float | None:
    """Seconds of a burst of rounds; None where others never left the machine alone."""
    tries = 10**6 if settings.patient else TRIES
    for _ in range(tries):
        if settings.patient:
            machine.wait_for_quiet(settings.busy)
        running.resume()
        pids = running.pids()
        before = machine.Moment.now(pids)
        took = [running.rounds(number, BURST[settings.device])]
        while sum(took) < VISIT and not settings.small:
            took.append(running.rounds(number, BURST[settings.device]))
        others = before.others_until(machine.Moment.now(pids))
        running.pause()
        if others <= settings.busy:
            return median(took)
    return None


def row_of(
    part: str,
    name: str,
    times: list[float],
    samples: float,
    started: float,
    memory: int,
    seconds_at_peak: float | None,
    fedbraid: float | None,
) -> Row:
    if not times:
        return Row(part, name, None, None, None, 0, started, memory / 1e6)
    middle = median(times)
    low, _, high = quantiles(times, n=4) if len(times) > 1 else (middle, middle, middle)
    return Row(
        work=part,
        contender=name,
        seconds_a_round=middle * samples,
        samples_per_s=1 / middle,
        spread=(high - low) / middle,
        kept=len(times),
        start_s=started,
        memory_mb=memory / 1e6,
        share_of_peak=seconds_at_peak and seconds_at_peak / middle,
        fedbraid_over=fedbraid and middle / fedbraid,
        times=times,
    )


def show(rows: Sequence[Row]) -> None:
    print(
        f"  {'contender':<16} {'ms a round':>10} {'spread':>6} {'samples/s':>10} {'fedbraid/it':>11} {'of peak':>7} "
        f"{'kept':>4} {'start s':>7} {'MB':>6}"
    )
    for row in sorted(rows, key=lambda row: row.seconds_a_round or float("inf")):
        if row.seconds_a_round is None:
            print(f"  {row.contender:<16} {'never measured in quiet':>48}")
            continue
        over = f"{row.fedbraid_over:.2f}" if row.fedbraid_over else "–"
        share = f"{row.share_of_peak:.1%}" if row.share_of_peak else "–"
        print(
            f"  {row.contender:<16} {1e3 * row.seconds_a_round:>10,.1f} {row.spread:>6.0%} {row.samples_per_s:>10,.0f} "
            f"{over:>11} {share:>7} {row.kept:>4} {row.start_s:>7.1f} {row.memory_mb:>6,.0f}",
            flush=True,
        )


# --- the same model


def check(part: work.Workload, ready: Sequence[Ready], settings: Settings, left_out: list[LeftOut]) -> list[Compared]:
    """One round from the same start: FedBraid in the order it draws, the others in the order the samples lie."""
    made = work.federation(part, 1)
    print(f"\n{part.name}: one round beside the same in float64", flush=True)
    print(f"  {'contender':<16} {'largest difference':>18} {'largest movement':>17} {'relative':>9}")
    beginning = [p.double() for p in made.start]
    references: dict[bool, list[torch.Tensor]] = {}
    compared: list[Compared] = []
    with written(made) as (file, folder):
        for one in able(part, ready, left_out):
            if not one.contender.federates or one.contender.name.endswith("-malloc"):
                continue
            ours = one.contender.worker == "by_fedbraid"
            if ours not in references:
                orders = reference.as_fedbraid_draws(made, 0, 0) if ours else reference.as_they_lie(made)
                references[ours] = reference.one_round(made, 0, orders)
            try:
                got = model_after_a_round(one, file, folder, settings)
            except Failed as reason:
                left_out.append(LeftOut(part.name, one.contender.name, str(reason)))
                continue
            wanted, before, after = (torch.cat([t.flatten() for t in ts]) for ts in (references[ours], beginning, got))
            apart, moved = after - wanted, wanted - before
            relative = float(apart.norm() / moved.norm())
            found = Compared(
                part.name,
                one.contender.name,
                float(apart.abs().max()),
                float(moved.abs().max()),
                relative,
                relative <= TOLERANCE[settings.device],
            )
            compared.append(found)
            verdict = "" if found.agrees else "  DIFFERS"
            print(
                f"  {found.contender:<16} {found.largest:>18.1e} {found.movement:>17.1e} {relative:>9.1e}{verdict}",
                flush=True,
            )
    return compared


def model_after_a_round(one: Ready, file: Path, folder: Path, settings: Settings) -> list[torch.Tensor]:
    running = start(one, file, settings, "--in-order")
    try:
        running.rounds(0)
        path = folder / f"{one.contender.name}.npz"
        running.save(path)
        with np.load(path) as saved:
            return [torch.from_numpy(saved[f"arr_{k}"]).double() for k in range(len(saved.files))]
    finally:
        running.close()


# --- the command line


def command_line() -> tuple[argparse.Namespace, Settings]:
    names = [one.name for one in work.WORKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"workloads, with commas between: {', '.join(names)}")
    parser.add_argument("--contenders", default="", help="with commas between; all, if none is named")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--check", action="store_true", help="compare models instead of times")
    parser.add_argument("--json", type=Path, help="a file for all that was found")
    parser.add_argument("--busy", type=float, help="share of the cores that others may take (0.15; any with cuda)")
    parser.add_argument("--patient", action="store_true", help="wait until the machine is quiet, however long")
    parser.add_argument("--small", action="store_true", help="a few steps a round: tries things out, measures nothing")
    parser.add_argument(
        "--envs", type=Path, default=Path.home() / ".cache" / "fedbraid" / "peers", help="where environments are kept"
    )
    parser.add_argument("--site", type=Path, help="a folder with the peers' packages, instead of environments")
    given = parser.parse_args()
    only = tuple(given.only.split(",")) if given.only else tuple(names if given.device == "cpu" else names[1:])
    wanted = tuple(given.contenders.split(",")) if given.contenders else ()
    known = [one.name for one in contenders(given.device, usable_cores())]
    for name, among in [*((name, names) for name in only), *((name, known) for name in wanted)]:
        if name not in among:
            parser.error(f"there is no {name!r}; there are {', '.join(among)}")
    if given.repeats < 1:
        parser.error(f"--repeats must be 1 or more, not {given.repeats}")
    busy = given.busy if given.busy is not None else (0.15 if given.device == "cpu" else ANY)
    return given, Settings(
        device=given.device,
        repeats=given.repeats,
        busy=busy,
        patient=given.patient,
        small=given.small,
        envs=given.envs.resolve(),
        site=given.site and given.site.resolve(),
        only=only,
        contenders=wanted,
    )


if __name__ == "__main__":
    sys.exit(main())
