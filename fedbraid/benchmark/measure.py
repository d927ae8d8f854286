"""Contenders timed in turn, each kind in a process of its own, so that none profits from another's settings."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median, quantiles
from time import perf_counter
from typing import Any, Literal

import torch

from fedbraid.benchmark.contenders import (
    Round,
    engine,
    flops_per_sample,
    matmul_rate,
    single_model,
    usual_loop,
    wait_for,
)
from fedbraid.benchmark.work import Workload
from fedbraid.errors import UserError

Who = Literal["usual loop", "single model", "fedbraid"]
USUAL: Who = "usual loop"
LIMIT: Who = "single model"
WARM = 5
"""Bursts of an engine that are not counted; the others have nothing to prepare and do one."""
AT_LEAST = 3
BURST = {"cpu": 1, "cuda": 3}
"""Rounds of an engine that are timed as one: a host may be working on the next before a GPU has ended the last."""
LONG = {"cpu": 30.0, "cuda": 5.0}
"""A contender that has taken so long, in seconds, is not asked again once it has been asked at least so often."""


@dataclass(frozen=True)
class Row:
    """One contender on one workload."""

    work: str
    about: str
    engine: str
    chosen: bool  # whether this is what engine.kind=auto takes here
    samples_per_s: float
    spread: float  # between the quarters of the repeats, as a share of the median
    vs_usual: float
    vs_limit: float
    flop_per_s: float
    of_matmul: float  # that rate as a share of a large matrix product's


def measure(
    todo: Sequence[Workload], *, device: str, repeats: int, note: Callable[[str], None], evaluated: bool = True
) -> list[Row]:
    """Every workload, contenders in turn."""
    rows: list[Row] = []
    with _process(USUAL, device) as usual, _process(LIMIT, device) as limit, _process("fedbraid", device) as ours:
        rate = _ask(ours, "rate")
        for work in todo:
            note(f"{work.name}: {work.about} …")
            also = ALSO[kind_of(device)] + ([("auto", {"evaluated": True})] if evaluated else [])
            new = list(_rows(work, _timed(work, usual, limit, ours, also, repeats, device), rate))
            for row in new:  # so that nothing is lost to somebody who cannot wait for the end
                note(f"    {row.engine}: {row.samples_per_s:,.0f} samples/s ± {row.spread:.0%}")
            rows += new
    return rows


ALSO: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "cpu": [("compiled", {}), ("stack", {}), ("loop", {})],
    "cuda": [("auto", {"precision": "medium"})],
}
"""What is timed beside the engine that is chosen."""
Times = dict[str, list[float]]
"""Seconds for a sample, by contender."""


def _timed(
    work: Workload,
    usual: Connection,
    limit: Connection,
    ours: Connection,
    also: Sequence[tuple[str, dict[str, Any]]],
    repeats: int,
    device: str,
) -> tuple[str, Times]:
    """Return the chosen engine, and the times of all."""
    processes = {USUAL: usual, LIMIT: limit}
    chosen = _ask(ours, "prepare", work, "auto", {})
    others = [_ask(ours, "prepare", work, kind, more) for kind, more in also if kind != chosen]
    processes |= {name: ours for name in (chosen, *others) if name}
    for process in (usual, limit):
        _ask(process, "prepare", work, "", {})
    times: Times = {name: [] for name in processes}
    spent = dict.fromkeys(processes, 0.0)
    first = {name: WARM if process is ours else 1 for name, process in processes.items()}
    several = {name: BURST[kind_of(device)] if process is ours else 1 for name, process in processes.items()}
    for number in range(WARM + repeats):
        for name, process in processes.items():
            enough = len(times[name]) >= AT_LEAST and spent[name] > LONG[kind_of(device)]
            if enough or number < WARM - first[name]:
                continue
            seconds, samples = _ask(process, "rounds", name, number * several[name], several[name])
            if number >= WARM:  # the rounds before make programs and warm caches
                times[name].append(seconds / samples)
                spent[name] += seconds
    for process in {*processes.values()}:
        _ask(process, "forget")
    return chosen, times


def _rows(work: Workload, timed: tuple[str, Times], rate: float) -> Iterator[Row]:
    chosen, times = timed
    flops = flops_per_sample(work)
    usual, limit = median(times[USUAL]), median(times[LIMIT])
    for name, each in times.items():
        middle = median(each)
        quarters = quantiles(each, n=4) if len(each) > 1 else [middle] * 3
        yield Row(
            work.name,
            work.about,
            name,
            name == chosen,
            1 / middle,
            (quarters[2] - quarters[0]) / middle,
            usual / middle,
            limit / middle,
            flops / middle,
            flops / middle / rate,
        )


def kind_of(device: str) -> str:
    """cuda of cuda:1."""
    return device.partition(":")[0]


# --- processes


@contextmanager
def _process(who: Who, device: str) -> Iterator[Connection]:
    """A process that prepares contenders and runs their rounds when asked."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, who, device), daemon=True)
    process.start()
    there.close()
    try:
        yield here
    finally:
        here.close()
        process.join(10)
        process.kill()


def _ask(process: Connection, *question: Any) -> Any:
    process.send(question)
    answer = process.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _serve(asked: Connection, who: Who, device: str) -> None:
    if device != "cpu":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    rounds: dict[str, Round] = {}
    while True:
        try:
            question, *details = asked.recv()
        except EOFError:
            return
        try:
            asked.send(_answer(question, details, who, device, rounds))
        except Exception as error:  # the one who asked shall know
            asked.send(error)


def _answer(question: str, details: list[Any], who: Who, device: str, rounds: dict[str, Round]) -> Any:
    if question == "rate":
        return matmul_rate(device)
    if question == "prepare":
        return _prepare(who, device, rounds, *details)
    if question == "rounds":
        name, first, several = details
        wait_for(device)
        began = perf_counter()
        samples = sum(rounds[name](number) for number in range(first, first + several))
        wait_for(device)
        return perf_counter() - began, samples
    rounds.clear()
    if device != "cpu":
        torch.cuda.empty_cache()
    return None


def _prepare(who: Who, device: str, rounds: dict[str, Round], work: Workload, kind: str, more: dict[str, Any]) -> str:
    """Makes a contender and returns its name; empty if an engine of this kind is not to be had here."""
    if who != "fedbraid":
        rounds[who] = (usual_loop if who == USUAL else single_model)(work, device)
        return who
    try:
        made, name = engine(work, device, kind, **more)
    except UserError:  # it cannot be compiled, for one
        return ""
    if kind not in ("auto", name):
        return ""
    name += ", evaluated" if "evaluated" in more else ", bfloat16" if "precision" in more else ""
    rounds[name] = made
    return name
