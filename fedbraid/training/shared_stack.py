"""Runs that go forward together: each one round at a time, the clients of all of them in one stack.

Rounds are as they would be alone: every run samples, sends, averages, steps and evaluates by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from fedbraid.core.tree import nbytes
from fedbraid.engines.joint import Joint
from fedbraid.engines.memory import free_memory
from fedbraid.engines.transfer import RoundClock
from fedbraid.training.federation import first_step
from fedbraid.training.run_writer import OnRound, RunWriter
from fedbraid.training.simulation import Simulation

Lines = Callable[[], dict[int, dict[str, Any]]]
"""Lines of several logs; reading them waits for a GPU, which may be a round behind."""

SHARE = 0.5
"""How much of the free memory runs that go together may come to hold beside a stack."""


class SharedStack:
    """Simulations that share a stack (`engines.joint.why_apart` says which cannot)."""

    def __init__(self, simulations: Sequence[Simulation]) -> None:
        self.simulations = simulations
        self.read_at = 0.0  # when the last lines were read
        self.stopped: set[int] = set()  # the places of those that go no further

    @cached_property
    def joint(self) -> Joint:
        return Joint([e.local for e in self.simulations])

    @property
    def runs_ahead(self) -> bool:
        """Return whether the next round can be launched before the last one's lines are read."""
        return self.simulations[0].server.w.device.type == "cuda"

    @property
    def going(self) -> list[int]:
        """The places of those that are not finished, and were not stopped."""
        return [k for k, e in enumerate(self.simulations) if not e.finished and k not in self.stopped]

    def advance(self) -> dict[int, dict[str, Any]]:
        """One round of every run that is not finished: the lines of their logs, by place."""
        return self.launch()()

    def launch(self) -> Lines:
        """The same, or at least its start: a GPU may still be busy with it.

        The seconds of the round go to the runs by the samples that each of them saw.
        """
        going = self.going
        if len(going) == 1:
            (k,) = going
            line = self.simulations[k].launch()
            return lambda: {k: line()}
        clock = RoundClock(self.simulations[0].server.w.device)
        work = dict.fromkeys(going, 1)
        with self.simulations[0].threads():
            steps = {k: first_step(self.simulations[k].training()) for k in going}
            while asked := {k: step.job for k, step in steps.items() if step.job is not None}:
                probing = {k: job for k, job in asked.items() if job.kind == "probe"}
                replies = self.joint.run(probing or asked)  # then everybody trains at once
                for k in () if probing else replies:
                    if coming := self.simulations[k].coming():
                        self.joint.prepare(k, *coming)
                for k, reply in replies.items():
                    work[k] += reply.work.forward + reply.work.backward
                    steps[k] = steps[k].next(reply)
        scores = {k: self.simulations[k].evaluated() for k in going}
        clock.stop()

        def lines() -> dict[int, dict[str, Any]]:
            read = {k: steps[k].line() | scores[k]() for k in going}
            seconds, self.read_at = clock.seconds(self.read_at)
            each = seconds / sum(work.values())
            return {k: line | {"seconds": each * work[k]} for k, line in read.items()}

        return lines


def train_rounds(
    group: Mapping[int, RunWriter[Simulation]], on_round: OnRound | None, should_stop: Callable[[], bool]
) -> Iterator[int]:
    """Advance runs that share a stack round by round; yield the index of each as soon as it is over.

    On a GPU a round is launched before the lines of the one before are read, so that the device does not wait for the
    log. It waits where a checkpoint is due, since that saves the state after the latest round, where a run stops, and
    with callbacks, whose `state.model` is that of the line they see.
    """
    indices, writers = list(group), list(group.values())
    stack = SharedStack([writer.federation for writer in writers])
    yield from (index for index, writer in group.items() if writer.federation.finished)
    unread, stopping = list[Lines](), False
    while (going := stack.going) and not stopping:
        unread.append(stack.launch())  # on a GPU this returns before the round is done
        stopping = should_stop()
        waits = stopping or not stack.runs_ahead or any(writers[k].is_due or writers[k].callbacks for k in going)
        # One round stays unread, so that the GPU has work while its log is written; none if the run must wait here.
        while len(unread) > (not waits):
            for k, line in unread.pop(0)().items():
                writers[k].note(line, on_round)
                if writers[k].stopped:
                    stack.stopped.add(k)
                    waits = True  # for the round that a GPU may have begun meanwhile, which is its last one
        for k in going:
            if k in stack.stopped and not writers[k].federation.finished:
                writers[k].end()
        yield from (indices[k] for k in going if k not in stack.going)
    for k in stack.going:
        writers[k].save()


def fit_in_memory(simulations: Sequence[Simulation]) -> bool:
    """Return whether there is memory for all of these simulations at once."""
    return sum(map(_holds, simulations)) <= SHARE * free_memory(simulations[0].server.w.device)


def _holds(simulation: Simulation) -> int:
    """Return the bytes that a run comes to hold: a round's models with states, and all states in the end."""
    setup, store = simulation.setup, simulation.store
    cohort = setup.cohort or setup.population
    states = nbytes(store.blank)
    kept = 0 if store.on_disk else setup.population * states
    return cohort * (nbytes({"w": setup.w}) + states) + kept + nbytes(simulation.server.kept)
