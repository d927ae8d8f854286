"""Choice of the engine on a CPU: short trials on the run's own clients, remembered on disk.

A trial trains clients of the first round and throws the result away. Local training is compiled for a trial where the
run is long enough to pay for that.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from fedbraid.config.schema import Config
from fedbraid.core.chain import Chain
from fedbraid.core.model import Model
from fedbraid.core.optimizer import Optimizer
from fedbraid.core.plan import LocalWork
from fedbraid.core.round import Job, Server, one_round
from fedbraid.core.strand import Cohort, Setup
from fedbraid.core.tree import Tree
from fedbraid.data.paths import cache_directory
from fedbraid.engines.compiled import Compiled
from fedbraid.engines.cpu import one_thread, usable_cores
from fedbraid.engines.local_engine import EngineKind, Local, Store
from fedbraid.engines.samples import Clients
from fedbraid.errors import UserError
from fedbraid.storage.files import write_json
from fedbraid.training.federation import learning_rate
from fedbraid.version import __version__

log = logging.getLogger("fedbraid")

GUESS = 2e-4
"""Seconds of a small network's local step, to tell short runs before any trial."""
SHORT = 5.0
"""A run that should take fewer seconds is not worth a trial."""
LONG = 10.0
"""A run that should take more is worth compiling for; a shorter one only takes a library that is there."""
PATIENCE = 0.25
"""Seconds that a trial of an engine may take."""
REPEATS = 5
TRIAL_STEPS = 4


@dataclass(frozen=True, eq=False)
class FirstRound:
    """A run before its first round, with all but an engine: what engines are tried on."""

    config: Config
    chain: Chain
    model: Model
    optimizer: Optimizer
    setup: Setup
    server: Server
    clients: Clients
    cohort: Cohort

    @property
    def steps(self) -> float:
        """Local steps that all clients of a round take together, on average over clients."""
        work, sizes = self.config.local, self.clients.sizes
        each = work.steps or work.epochs * -(-sizes // (work.batch or sizes.max()))
        return float(np.mean(each)) * len(self.cohort)


@dataclass(frozen=True)
class Seconds:
    """Seconds of one client's local step by engine, on average over a round; None: not tried or not possible."""

    loop: float
    stack: float | None = None
    compiled: float | None = None

    def fastest(self, usual: EngineKind) -> EngineKind:
        """The fastest of those that were tried; what is usual where there is nothing to compare."""
        known: dict[EngineKind, float] = {kind: s for kind, s in self._pairs() if s is not None}
        return min(known, key=known.__getitem__) if len(known) > 1 else usual

    def __str__(self) -> str:
        known = [f"{kind} {1e6 * s:.0f} µs" for kind, s in self._pairs() if s is not None]
        return f"a client's local step: {', '.join(known)}"

    def _pairs(self) -> list[tuple[EngineKind, float | None]]:
        return [("loop", self.loop), ("stack", self.stack), ("compiled", self.compiled)]


def choose_engine(first: FirstRound, make: Callable[[EngineKind], Local], usual: EngineKind) -> Local:
    """Return the engine that the configuration asks for, or the fastest of short trials.

    `make` builds an engine of a kind; `usual` is the kind where nothing is tried.
    """
    config, engine = first.config.engine, make(usual)
    if config.here == "compiled":
        return _compiled(first, engine)
    steps = first.steps * first.config.rounds
    alone = usual == "loop" or first.server.w.device.type != "cpu"  # nothing else is sensible
    if config.here != "auto" or alone or steps * GUESS < SHORT:
        return engine
    seconds = _remembered(first) or _tried(first, make, engine)
    if seconds.stack is not None and seconds.compiled is None:
        worth = steps * min(seconds.loop, seconds.stack) > LONG
        seconds = replace(seconds, compiled=_compiled_seconds(first, make, worth))
    _remember(first, seconds)
    kind = seconds.fastest(usual)
    log.info("%s (%s)", kind, seconds)
    return engine if kind == usual else make(kind)


def _tried(first: FirstRound, make: Callable[[EngineKind], Local], usual: Local) -> Seconds:
    """The loop and the stack: over a whole round where that is quick, else over a few steps of a few clients."""
    job, work = _first_job(first, usual), first.config.local
    loop, stack = make("loop"), usual
    one = _timed(_trial(loop, LocalWork(work.batch, steps=1)), job.only(np.arange(1)))
    if one * len(job.cohort) > PATIENCE:
        return Seconds(one)
    if one * first.steps < PATIENCE:
        return Seconds(_timed(_trial(loop, work), job), _timed(_trial(stack, work), job))
    few = LocalWork(work.batch, steps=TRIAL_STEPS)
    several = job.only(np.arange(min(2 * (first.config.engine.workers or usable_cores()), len(job.cohort))))
    # a stack thins out as clients finish, and a step of half of it takes more than half of the time
    sizes = first.clients.sizes[job.cohort.ids]
    thinning = (1 + sizes.max() / sizes.mean()) / 2
    return Seconds(_timed(_trial(loop, few), several), _timed(_trial(stack, few), job) * thinning)


def _compiled_seconds(first: FirstRound, make: Callable[[EngineKind], Local], worth: bool) -> float | None:
    """A local step by machine code, or None where that cannot be had: not at all, or not at once and not worth it."""
    engine = make("compiled")
    trial = _trial(engine if worth else replace(engine, compile_seconds=0.0), engine.work)
    job = _first_job(first, trial)
    with one_thread():
        trial.run(job.only(np.arange(1)))  # compiles
    if _why_not(trial):
        return None
    seconds = _timed(trial, job)
    return seconds


def _compiled(first: FirstRound, engine: Local) -> Local:
    """The compiled stack, as it was asked for."""
    if first.server.w.device.type != "cpu":
        raise UserError("engine.kind=compiled is for CPUs; set engine.device=cpu, or engine.kind=auto")
    if engine.kind != "compiled":
        raise UserError("engine.kind=compiled needs a network that can be batched over clients; set engine.kind=auto")
    trial = _trial(engine, engine.work)
    job = _first_job(first, trial)
    with one_thread():
        trial.run(job.only(np.arange(1)))
    reason = _why_not(trial)
    if reason:
        raise UserError(f"local training cannot be compiled: {reason}; set engine.kind=auto")
    return engine


def _why_not(engine: Local) -> str:
    assert isinstance(engine.stack, Compiled)
    return engine.stack.refused


def _trial(engine: Local, work: LocalWork) -> Local:
    """The same engine with other work and no effect on what clients keep."""
    return replace(engine, work=work, store=_Untouched(engine.store))


@dataclass(frozen=True)
class _Untouched:
    store: Store

    def read(self, ids: Sequence[int]) -> dict[str, Tree]:
        return self.store.read(ids)

    def write(self, ids: Sequence[int], kept: dict[str, Tree]) -> None:
        """Forget the states that a trial leaves."""


def _timed(engine: Local, job: Job) -> float:
    """Seconds for each local step of a client: the best of a few, since other processes only ever add to it."""
    times: list[float] = []
    with one_thread():
        engine.run(job)  # makes programs
        while len(times) < REPEATS and sum(times) < PATIENCE:
            began = perf_counter()
            engine.run(job)
            times.append(perf_counter() - began)
    return min(times) / sum(len(engine.plan(job.seed, job.round, int(i))) for i in job.cohort.ids)


def _first_job(first: FirstRound, engine: Local) -> Job:
    """The training that clients are asked for first."""
    config, lr = first.config, learning_rate(first.config, first.optimizer, 0)
    flow = one_round(first.chain, lr, first.setup, first.server, first.cohort, config.seed)
    job = next(flow)
    if job.kind == "probe":
        with one_thread():
            replies = engine.run(job)
        job = flow.send(replies)
    return job


# --- what was measured before


def _remembered(first: FirstRound) -> Seconds | None:
    try:
        return Seconds(**json.loads(_place(first).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _remember(first: FirstRound, seconds: Seconds) -> None:
    try:
        write_json(_place(first), asdict(seconds))
    except OSError as error:
        log.info("what was measured cannot be kept: %s", error)


def _place(first: FirstRound) -> Path:
    config, x = first.config, first.clients.samples.x
    facts = [
        *(__version__, torch.__version__, usable_cores(), asdict(config.engine), asdict(config.local)),
        *(str(first.chain), repr(first.model.training), repr(first.optimizer)),
        *(list(x.shape[1:]), str(x.dtype), len(first.cohort), asdict(config.augment)),
    ]
    digest = hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:24]
    return cache_directory() / "calibrated" / f"{digest}.json"
