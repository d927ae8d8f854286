"""Which engine trains a federation on a CPU: short trials on its own clients, remembered on disk.

A trial trains a few clients of the first round for a few steps and throws the result away. Small networks are also
tried with local training compiled, where the run is long enough to pay for that.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedbraid.core.plan import LocalWork
from fedbraid.core.round import Job, one_round
from fedbraid.data.places import cache_directory
from fedbraid.engines.compiled import Compiled
from fedbraid.engines.cpu import one_thread, usable_cores
from fedbraid.engines.local import Kind, Local
from fedbraid.engines.replies import Stacked
from fedbraid.errors import UserError
from fedbraid.files import write_json
from fedbraid.version import __version__

if TYPE_CHECKING:
    from fedbraid.experiment import Experiment

log = logging.getLogger("fedbraid")

SHORT = 5.0
"""A run that should take fewer seconds is not worth a trial."""
LONG = 60.0
"""A run that should take more seconds is worth compiling for; a shorter one only takes a library that is there."""
SMALL = 2e-3
"""Seconds of a local step below which asking for operations, not computing them, is most of it."""
GUESS = 2e-4
"""Seconds of a small network's local step, to tell short runs before any trial."""
TRIAL_STEPS = 4


@dataclass(frozen=True)
class Seconds:
    """What each engine takes for one client's local step, on average over a round; None: not tried or not possible."""

    loop: float
    stack: float | None = None
    compiled: float | None = None

    def fastest(self) -> Kind:
        known: dict[str, float] = {name: value for name, value in asdict(self).items() if value is not None}
        return min(known, key=known.__getitem__)  # type: ignore[return-value]


def settled(experiment: Experiment, made: Callable[[Kind], Local]) -> Local:
    """The engine for this federation; `made` makes one. What the configuration asks for, or the fastest."""
    config, usual = experiment.config.engine, experiment.engine
    if config.kind == "compiled":
        return _compiled(experiment, made)
    steps = _steps_in_a_round(experiment) * experiment.config.rounds
    if config.kind != "auto" or usual.kind == "loop" or experiment.server.w.device.type != "cpu":
        return usual
    if steps * GUESS < SHORT:
        return usual
    seconds = _remembered(experiment) or _tried(experiment, made)
    if seconds.loop < SMALL and seconds.compiled is None:
        eager = min(s for s in (seconds.loop, seconds.stack) if s is not None)
        seconds = replace(seconds, compiled=_compiled_seconds(experiment, made, worth=steps * eager > LONG))
    _remember(experiment, seconds)
    kind = seconds.fastest()
    log.info("%s: %s", kind, _in_words(seconds))
    return usual if kind == usual.kind else made(kind)


def _in_words(seconds: Seconds) -> str:
    told = [f"{name} {1e6 * value:.0f} µs" for name, value in asdict(seconds).items() if value is not None]
    return f"a client's local step takes, by engine: {', '.join(told)}"


def _tried(experiment: Experiment, made: Callable[[Kind], Local]) -> Seconds:
    """The loop and the stack, each over a few steps of a few clients."""
    few = LocalWork(experiment.config.local.batch, steps=TRIAL_STEPS)
    flow = _first_job(experiment, experiment.engine)
    workers = experiment.config.engine.workers or usable_cores()
    loop = _timed(_trial(made("loop"), few), flow.only(np.arange(min(2 * workers, len(flow.cohort)))))
    # stacks thin out as clients finish; a step of half a stack costs more than half
    sizes = experiment.clients.sizes[flow.cohort.ids]
    thinning = 0.5 * (1 + sizes.max() / sizes.mean())
    stack = _timed(_trial(experiment.engine, few), flow)
    return Seconds(loop, stack * thinning)


def _compiled_seconds(experiment: Experiment, made: Callable[[Kind], Local], *, worth: bool) -> float | None:
    """A local step of the compiled stack, or None where it cannot be had (or not at once, and is not worth it)."""
    engine = made("compiled")
    if not worth:
        engine = replace(engine, compile_seconds=0.0)
    trial = _trial(engine, engine.work)
    seconds = _timed(trial, _first_job(experiment, trial))
    return None if _why_not(trial) else seconds


def _compiled(experiment: Experiment, made: Callable[[Kind], Local]) -> Local:
    """The compiled stack, as it was asked for."""
    if experiment.server.w.device.type != "cpu":
        raise UserError("engine.kind=compiled is for CPUs; set engine.device=cpu, or engine.kind=auto")
    if experiment.engine.kind != "compiled":
        raise UserError("engine.kind=compiled needs a network that can be batched over clients; set engine.kind=auto")
    trial = _trial(experiment.engine, experiment.engine.work)
    with torch.no_grad(), one_thread():
        trial.run(_first_job(experiment, trial))
    reason = _why_not(trial)
    if reason:
        raise UserError(f"local training cannot be compiled: {reason}; set engine.kind=auto")
    return experiment.engine


def _why_not(engine: Local) -> str:
    assert isinstance(engine.stack, Compiled)
    return engine.stack.refused


def _trial(engine: Local, work: LocalWork) -> Local:
    """The same engine with other work and no effect on what clients keep."""
    return replace(engine, work=work, store=_Untouched(engine.store))


@dataclass(frozen=True)
class _Untouched:
    store: Any

    def read(self, ids: Any) -> Any:
        return self.store.read(ids)

    def write(self, ids: Any, kept: Any) -> None:
        pass


def _timed(engine: Local, job: Job) -> float:
    """Seconds for each local step of a client; the first round makes programs and is not counted."""
    with one_thread():
        engine.run(job)
        began = perf_counter()
        engine.run(job)
    return (perf_counter() - began) / sum(len(engine.plan(job, int(i))) for i in job.cohort.ids)


def _first_job(experiment: Experiment, engine: Local) -> Job:
    """The training that clients are asked for first."""
    cohort, config = experiment.cohort(), experiment.config
    flow = one_round(experiment.chain, experiment.optimizer, experiment.setup, experiment.server, cohort, config.seed)
    job = next(flow)
    if job.kind == "probe":
        with one_thread():
            replies: Stacked = engine.run(job)
        job = flow.send(replies)
    return job


def _steps_in_a_round(experiment: Experiment) -> float:
    """How many local steps all clients of a round take together, about."""
    work, sizes = experiment.config.local, experiment.clients.sizes
    each = work.steps or work.epochs * -(-sizes // (work.batch or sizes.max()))
    return float(np.mean(each)) * len(experiment.cohort())


# --- what was measured before

def _remembered(experiment: Experiment) -> Seconds | None:
    try:
        return Seconds(**json.loads(_place(experiment).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _remember(experiment: Experiment, seconds: Seconds) -> None:
    try:
        write_json(_place(experiment), asdict(seconds))
    except OSError as error:
        log.info("what was measured cannot be kept: %s", error)


def _place(experiment: Experiment) -> Any:
    config, x = experiment.config, experiment.clients.samples.x
    facts = [
        *(__version__, torch.__version__, usable_cores(), asdict(config.engine), asdict(config.local)),
        *(str(experiment.chain), repr(experiment.model.training), repr(experiment.optimizer)),
        *(list(x.shape[1:]), str(x.dtype), len(experiment.cohort()), asdict(config.augment)),
    ]
    digest = hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:24]
    return cache_directory() / "calibrated" / f"{digest}.json"
