"""Runs trained: one after the other, or several in one stack where their clients do the same.

`train_runs` is the one way from specifications to finished runs, for `run`, `compare` and studies. It groups the runs,
builds each group's simulations, advances them round by round, and hands out every run as soon as it is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from traceback import clear_frames
from typing import Any

from fedbraid.config.schema import Config
from fedbraid.engines.joint import why_apart
from fedbraid.engines.local_engine import Local
from fedbraid.errors import UserError
from fedbraid.training.callbacks import CallbackError, check_callbacks
from fedbraid.training.resolve import resolve_config
from fedbraid.training.results import Run
from fedbraid.training.run_checks import validate, validate_on_data
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.run_writer import OnRound, RunWriter
from fedbraid.training.shared_stack import fit_in_memory, train_rounds
from fedbraid.training.simulation import Simulation, build_simulation

log = logging.getLogger("fedbraid")


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Listener:
    """Callbacks of the caller of `train_runs`. Runs go by their index."""

    on_round: OnRound | None = None
    """Called after each round with its line of the log and the run's configuration. What it raises ends everything."""
    on_refused: Callable[[int, UserError], None] | None = None
    """Called with a run that cannot be made. Without it, mistakes are refused before any run is trained."""
    on_failed: Callable[[int, Exception], None] | None = None
    """Called with a run that went wrong while others go on. Without it, the first such run ends everything."""
    should_stop: Callable[[], bool] = _never
    """Asked after each round. Once true, what goes on is saved and nothing else is begun."""
    callbacks: Sequence[Any] = ()
    """Follow all runs (`callbacks.Callback`). What one raises ends everything."""


def train_runs(
    specs: Sequence[RunSpec], *, resume: bool = False, together: bool = True, listener: Listener | None = None
) -> dict[int, Run]:
    """Train what is left of each run; return the runs by their index, without those that the listener heard of.

    With `together`, runs that can share a stack do. What callbacks raise comes out unchanged.
    """
    try:
        return dict(iterate_runs(specs, resume=resume, together=together, listener=listener))
    except CallbackError as raised:
        error = raised.error
    raise error  # here, where its own cause and context stay as they were


def iterate_runs(
    specs: Sequence[RunSpec], *, resume: bool = False, together: bool = True, listener: Listener | None = None
) -> Iterator[tuple[int, Run]]:
    """Train what is left of each run; yield every run with its index as soon as it is over.

    What callbacks raise comes out as the `error` of a CallbackError.
    """
    listener = _guarded(listener or Listener())
    if listener.on_refused is None:
        validate(specs, resume=resume)
    scheduler = _Scheduler(specs, resume, together, listener)
    with ExitStack() as engines:
        for group in scheduler.groups():
            engines.pop_all().close()  # of the group before: this one has taken over its workers
            yield from scheduler.train(group, engines)
            if listener.should_stop():
                return


def _guarded(listener: Listener) -> Listener:
    """Check the callbacks, and have errors of `on_round` pass as CallbackErrors."""
    listener = replace(listener, callbacks=check_callbacks(listener.callbacks))
    on_round = listener.on_round
    if on_round is None:
        return listener
    if not callable(on_round):
        raise UserError(f"on_round is a function of a round's line and the configuration, not {on_round!r}")

    def called(line: dict[str, Any], config: Config) -> object:
        try:
            return on_round(line, config)
        except Exception as error:
            raise CallbackError(error) from error

    return replace(listener, on_round=called)


Group = dict[int, RunWriter[Simulation]]
"""Runs that share a stack, by their index."""


class _Scheduler:
    """Groups runs, trains a group, and decides what becomes of the others when one fails."""

    def __init__(self, specs: Sequence[RunSpec], resume: bool, together: bool, listener: Listener) -> None:
        self.specs = specs
        self.resume = resume
        self.together = together
        self.listener = listener
        self.trained = False  # whether a group was trained: from then on a mistake no longer comes in time

    # --- which runs share a stack

    def groups(self) -> Iterator[Group]:
        """Build the runs and yield those that share a stack together. Nothing is written to a directory yet.

        A group is built while the engine of the one before still stands, so that Ray workers, the data set and its
        samples on the device are taken over instead of made again.
        """
        latest: Simulation | None = None
        for indices in self._candidates():
            group: Group = {}
            for index in indices:
                try:
                    simulation = build_simulation(self.specs[index].as_recorded(), latest)
                    if latest is None and self.listener.on_refused is None:
                        self._validate_all_on(simulation)
                except Exception as error:
                    self._cannot_build(index, error)
                    continue
                latest = simulation
                if group and (reason := _why_not_with(list(group.values()), simulation)):
                    log.debug("%s seed %d goes by itself: %s", simulation.config.method, simulation.config.seed, reason)
                    yield group
                    group = {}
                group[index] = self._writer(self.specs[index], simulation)
            if group:
                yield group

    def _candidates(self) -> list[list[int]]:
        """Indices of the runs whose configurations allow a common stack; whether they fit is known once built."""
        alike: dict[str, list[int]] = {}
        for index, spec in enumerate(self.specs):
            alike.setdefault(spec.stack_key if self.together else str(index), []).append(index)
        return list(alike.values())

    def _validate_all_on(self, first: Simulation) -> None:
        """Refuse, before the first run is trained, what does not suit its data in any run that has the same data."""
        for spec in self.specs:
            if spec.config.data == first.config.data and spec.config.partition == first.config.partition:
                validate_on_data(spec, first.dataset, len(first.partition))

    def _cannot_build(self, index: int, error: Exception) -> None:
        if self.listener.on_refused is not None and isinstance(error, UserError):
            self.listener.on_refused(index, error)
        elif self.listener.on_failed is not None and self.trained:
            self._fail(index, error)
        else:
            raise error

    # --- training a group

    def train(self, group: Group, engines: ExitStack, resume: bool | None = None) -> Iterator[tuple[int, Run]]:
        """Train a group; yield its runs as they end. Where one fails and the listener hears of it, the others go on."""
        for writer in group.values():
            engines.callback(writer.federation.engine.close)
        left = list(group)
        try:
            for index, run in train_group(group, self.resume if resume is None else resume, self.listener):
                left.remove(index)
                yield index, run
            self.trained = True
            return
        except CallbackError:
            raise
        except Exception as error:
            in_time = not self.trained and not all(writer.opened for writer in group.values())
            if self.listener.on_failed is None or in_time or not left:
                raise
            if len(left) == 1:
                self._fail(left[0], error)
            else:
                clear_frames(error.__traceback__)  # frames hold what the runs had on the device
        self.trained = True
        beside = group[left[0]].federation
        group.clear()
        if len(left) > 1:
            yield from self._train_apart(left, beside, engines)

    def _train_apart(self, indices: Sequence[int], beside: Simulation, engines: ExitStack) -> Iterator[tuple[int, Run]]:
        """Train the runs of a failed group one by one: that shows which of them fails, and the others are kept."""
        for index in indices:
            if self.listener.should_stop():
                return
            engines.pop_all().close()
            spec = self.specs[index]
            try:
                beside = build_simulation(spec.as_recorded(), beside)
            except Exception as error:
                self._fail(index, error)
                continue
            # those that are recorded were begun with the group, so they resume
            yield from self.train({index: self._writer(spec, beside)}, engines, resume=True)

    def _writer(self, spec: RunSpec, simulation: Simulation) -> RunWriter[Simulation]:
        weights = simulation.model.tensors if spec.objects.model is not None else None
        config = resolve_config(simulation, spec.objects)
        return RunWriter(simulation, config, spec.directory, weights, callbacks=self.listener.callbacks)

    def _fail(self, index: int, error: Exception) -> None:
        assert self.listener.on_failed is not None
        self.listener.on_failed(index, error)
        clear_frames(error.__traceback__)  # frames hold what the run had on the device


def train_group(group: Group, resume: bool, listener: Listener) -> Iterator[tuple[int, Run]]:
    """Lock the directories of runs that share a stack, begin or resume them, and train them to their ends."""
    with ExitStack() as all_locks:
        locks = {index: all_locks.enter_context(ExitStack()) for index in group}
        for index, writer in group.items():
            locks[index].enter_context(writer.locked())
            writer.check(resume)
        for writer in group.values():
            writer.open()
            writer.opened = True
        for index in train_rounds(group, listener.on_round, listener.should_stop):
            run = group[index].result()
            locks[index].close()  # the directory is the receiver's now
            yield index, run


def _why_not_with(others: Sequence[RunWriter[Simulation]], one: Simulation) -> str | None:
    """Say why a run cannot share a stack with others; None if it can."""
    simulations = [writer.federation for writer in others]
    if not (isinstance(simulations[0].engine, Local) and isinstance(one.engine, Local)):
        return "their clients are elsewhere"
    fits = fit_in_memory([*simulations, one])
    return why_apart(simulations[0].local, one.local) or (None if fits else "there is too little memory")
