"""Runs that go forward together: each one round at a time, the clients of all of them in one stack.

Rounds are as they would be alone: every run samples, sends, averages, steps and evaluates by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from time import perf_counter
from typing import Any, TypeVar

from fedbraid.core.tree import nbytes
from fedbraid.engines.joint import Joint
from fedbraid.engines.memory import free_memory
from fedbraid.experiment import Experiment, first_step

T = TypeVar("T")

SHARE = 0.5
"""How much of the free memory runs that go together may come to hold beside a stack."""


class Together:
    """Experiments that can share a stack (`engines.joint.why_apart` says which cannot)."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        self.experiments = experiments

    @cached_property
    def joint(self) -> Joint:
        return Joint([e.engine for e in self.experiments])

    @property
    def going(self) -> list[int]:
        """The places of those that are not finished."""
        return [k for k, e in enumerate(self.experiments) if not e.finished]

    def advance(self) -> dict[int, dict[str, Any]]:
        """One round of every run that is not finished: the lines of their logs, by place.

        A line's seconds are those that the run took alone, and its share of the stack's by samples.
        """
        going = self.going
        if len(going) == 1:
            return {k: self.experiments[k].advance() for k in going}
        seconds = dict.fromkeys(going, 0.0)

        def timed(run: int, f: Callable[..., T], *args: Any) -> T:
            began = perf_counter()
            result = f(*args)
            seconds[run] += perf_counter() - began
            return result

        with self.experiments[0].threads():
            steps = {k: timed(k, first_step, self.experiments[k].training()) for k in going}
            while asked := {k: step.job for k, step in steps.items() if step.job is not None}:
                probing = {k: job for k, job in asked.items() if job.kind == "probe"}
                began = perf_counter()
                replies = self.joint.run(probing or asked)  # then everybody trains at once
                for k in () if probing else replies:
                    if coming := self.experiments[k].coming():
                        self.joint.prepare(k, *coming)
                took = perf_counter() - began
                work = {k: 1 + reply.work.forward + reply.work.backward for k, reply in replies.items()}
                for k, reply in replies.items():
                    seconds[k] += took * work[k] / sum(work.values())
                    steps[k] = timed(k, steps[k].next, reply)
        lines = {k: steps[k].record | timed(k, self.experiments[k].evaluated) for k in going}
        return {k: line | {"seconds": seconds[k]} for k, line in lines.items()}


def fit(experiments: Sequence[Experiment]) -> bool:
    """Whether there is memory for all of them at once."""
    return sum(map(_holds, experiments)) <= SHARE * free_memory(experiments[0].server.w.device)


def _holds(experiment: Experiment) -> int:
    """Bytes that a run comes to hold: a round's models with their clients' states, and all states in the end."""
    setup, store = experiment.setup, experiment.store
    cohort = setup.cohort or setup.population
    states = nbytes(store.blank)
    kept = 0 if store.on_disk else setup.population * states
    return cohort * (nbytes({"w": setup.w}) + states) + kept + nbytes(experiment.server.kept)
