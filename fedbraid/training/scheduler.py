"""Runs that are asked for, carried out: one after the other, or together where they can share a stack."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from traceback import clear_frames
from typing import Any

from fedbraid import data, models
from fedbraid.config.inert import refuse_inert
from fedbraid.config.schema import Config, optimizer_of
from fedbraid.core.chain import Chain
from fedbraid.core.varied import form
from fedbraid.engines.joint import why_apart
from fedbraid.engines.local_engine import Local
from fedbraid.errors import UserError
from fedbraid.training.resolve import resolved
from fedbraid.training.results import Run
from fedbraid.training.run_directory import RunDirectory
from fedbraid.training.run_writer import OnRound, RunWriter, holds_a_run
from fedbraid.training.shared_stack import Lines, SharedStack, fit
from fedbraid.training.simulation import Simulation, build
from fedbraid.training.user_objects import UserObjects, check_supplied
from fedbraid.training.validation import check_effect, check_fit

log = logging.getLogger("fedbraid")


Refused = Callable[[int, UserError], None]
"""Told of a run, by its place, that cannot be made, and why."""
Failed = Callable[[int, Exception], None]
"""Told of a run, by its place, that went wrong on its way, or that cannot be made after others have begun."""


class FromCaller(Exception):
    """What `on_round` raised. It is no failure of a run's, and a StopIteration would not get through generators."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@dataclass(frozen=True)
class RunSpec:
    """A run that is asked for."""

    config: Config
    objects: UserObjects
    directory: RunDirectory | None = None

    @property
    def form(self) -> str:
        """The same for runs that may share a stack: they differ in numbers and seeds, or in who holds what."""
        config = self.config
        return repr((form(self.chain, optimizer_of(config)), config.data, config.augment, config.model))

    @property
    def chain(self) -> Chain:
        return self.objects.chain_of(self.config)

    def check_names(self) -> None:
        """Data, partition, network, optimiser: what is named must exist, and have the options that it is given."""
        config = self.config
        optimizer_of(config)
        if self.objects.data is None:
            data.find_dataset(config.data.name, config.data.options)
        if self.objects.partition is None:
            data.find_partition(config.partition.name, config.partition.options)
        if self.objects.model is None:
            models.find_network(config.model.name, config.model.options)

    @property
    def started(self) -> bool:
        """Whether it was begun before, with settings that were allowed then."""
        return self.directory is not None and self.directory.started

    def check_supplied(self) -> None:
        """Whether a run that was begun with objects of Python has them again."""
        if self.directory and self.directory.started:
            how = "go on in Python: fedbraid.run(…, {table}=…, out=…, resume=True)"
            check_supplied(self.directory.config(), self.objects, self.directory.path, how)

    def check_length(self) -> None:
        """Whether a run that was begun can have as many rounds as it is asked for now."""
        if self.directory and self.directory.started:
            self.directory.check_length(self.config.rounds, self.chain)

    def check_unused(self) -> None:
        """That there is no run yet where a new one is asked for."""
        if self.directory and self.directory.started:
            raise holds_a_run(self.directory)


def execute(
    requests: Sequence[RunSpec],
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    together: bool = True,
    failed: Failed | None = None,
) -> dict[int, Run]:
    """Run what is left to run of each: the runs by their place in `requests`, without those that `failed` is told of.

    What `on_round` raises comes out as it is.
    """
    if on_round is not None and not callable(on_round):
        raise UserError(f"on_round is a function of a round's line and the configuration, not {on_round!r}")
    calls = _from_caller(on_round) if on_round else None
    try:
        return dict(finished(requests, resume=resume, on_round=calls, together=together, failed=failed))
    except FromCaller as raised:
        error = raised.error
    raise error  # here, where its own cause and context stay as they were


def _from_caller(on_round: OnRound) -> OnRound:
    def called(line: dict[str, Any], config: Config) -> object:
        try:
            return on_round(line, config)
        except Exception as error:
            raise FromCaller(error) from error

    return called


def finished(
    requests: Sequence[RunSpec],
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    together: bool = True,
    stop: Callable[[], bool] = lambda: False,
    refused: Refused | None = None,
    failed: Failed | None = None,
) -> Iterator[tuple[int, Run]]:
    """Run what is left to run of each; every run with its place in `requests`, as soon as it is over.

    Once `stop` says so, after a round, what goes on is saved and nothing else is begun. A run that cannot be made, or
    that goes wrong, ends all, unless somebody listens to that: then the others go on. Mistakes that are known before
    anything was trained end all even so, unless `refused` listens.
    """
    if refused is None:
        asked = [(request.started, (request.config, request.chain)) for request in requests]
        refuse_inert([run for started, run in asked if not started], [run for started, run in asked if started])
        for request in requests:
            if resume:
                request.check_supplied()
                request.check_length()  # of all, before any is made longer
            else:
                request.check_unused()
    begun = False

    def impossible(place: int, error: Exception) -> None:
        if refused is not None and isinstance(error, UserError):
            refused(place, error)
        elif failed is not None and begun:
            _give_up(place, error, failed)
        else:
            raise error

    with ExitStack() as engines:
        for group in _groups(requests, resume, together, impossible, check_all=refused is None):
            engines.pop_all().close()  # of the group before, whose workers this one has now
            attempt = _Attempt(requests, resume, on_round, stop, failed, engines, early=not begun)
            yield from attempt.of(group)
            if stop():
                return
            begun = True


@dataclass(frozen=True, eq=False)
class _Attempt:
    """A group of runs carried out; where one goes wrong and somebody listens, the others still are."""

    requests: Sequence[RunSpec]
    resume: bool
    on_round: OnRound | None
    stop: Callable[[], bool]
    failed: Failed | None
    engines: ExitStack
    early: bool  # nothing was trained before, so that a mistake in what is asked for comes in time

    def of(self, group: dict[int, RunWriter[Simulation]]) -> Iterator[tuple[int, Run]]:
        for writer in group.values():
            self.engines.callback(writer.simulation.engine.close)
        left = list(group)
        try:
            for place, run in _carried_out(group, self.resume, self.on_round, self.stop):
                left.remove(place)
                yield place, run
            return
        except FromCaller:
            raise
        except Exception as error:
            in_time = self.early and not all(writer.opened for writer in group.values())
            if self.failed is None or in_time or not left:
                raise
            if len(left) == 1:
                _give_up(left[0], error, self.failed)
            else:
                clear_frames(error.__traceback__)
        beside = group[left[0]].simulation
        group.clear()
        if len(left) > 1:  # whose fault it was shows where each goes by itself
            yield from self._apart(left, beside)

    def _apart(self, places: Sequence[int], beside: Simulation) -> Iterator[tuple[int, Run]]:
        assert self.failed is not None
        for place in places:
            if self.stop():
                return
            self.engines.pop_all().close()
            request = self.requests[place]
            try:
                beside = _built(request, True, beside)
            except Exception as error:
                _give_up(place, error, self.failed)
                continue
            again = replace(self, resume=True, early=False)  # it was begun, if it is recorded
            yield from again.of({place: _recording(request, beside)})


def _give_up(place: int, error: Exception, failed: Failed) -> None:
    failed(place, error)
    clear_frames(error.__traceback__)  # which hold what the run had on the device


def _carried_out(
    group: dict[int, RunWriter[Simulation]], resume: bool, on_round: OnRound | None, stop: Callable[[], bool]
) -> Iterator[tuple[int, Run]]:
    """Runs that go together, with their places, as soon as they are over."""
    with ExitStack() as all_locks:
        locks = {place: all_locks.enter_context(ExitStack()) for place in group}
        for place, writer in group.items():
            locks[place].enter_context(writer.locked())
            writer.check(resume)
        for writer in group.values():
            writer.open()
            writer.opened = True
        for place in _rounds(group, on_round, stop):
            run = group[place].result()
            locks[place].close()  # the directory is the receiver's now
            yield place, run


def _rounds(
    group: dict[int, RunWriter[Simulation]], on_round: OnRound | None, stop: Callable[[], bool]
) -> Iterator[int]:
    """The rounds of runs that go together; the places of those that are over, as soon as they are."""
    places, writers = list(group), list(group.values())
    lock_step = SharedStack([r.simulation for r in writers])
    yield from (place for place, writer in group.items() if writer.simulation.finished)
    unread, stopped = list[Lines](), False
    while (going := lock_step.going) and not stopped:
        unread.append(lock_step.launch())
        stopped = stop()
        waits = stopped or not lock_step.runs_ahead or any(writers[k].is_due for k in going)
        while len(unread) > (not waits):
            for k, line in unread.pop(0)().items():
                writers[k].note(line, on_round)
                if writers[k].stopped:
                    lock_step.stopped.add(k)
                    waits = True  # for the round that a GPU may have begun meanwhile, which is its last one
        for k in going:
            if k in lock_step.stopped and not writers[k].simulation.finished:
                writers[k].end()
        yield from (places[k] for k in going if k not in lock_step.going)
    for k in lock_step.going:
        writers[k].save()


def _groups(
    requests: Sequence[RunSpec], resume: bool, together: bool, impossible: Failed, *, check_all: bool
) -> Iterator[dict[int, RunWriter[Simulation]]]:
    """Runs that go together, by their place in `requests`. Mistakes come before any file: nothing is written yet."""
    alike: dict[str, list[int]] = {}
    for place, request in enumerate(requests):
        alike.setdefault(request.form if together else str(place), []).append(place)
    latest: Simulation | None = None
    for places in alike.values():
        group: dict[int, RunWriter[Simulation]] = {}
        for place in places:
            try:
                made = _built(requests[place], resume, latest)
                if latest is None and check_all:
                    _check_all_fit(requests, made)
            except Exception as error:
                impossible(place, error)
                continue
            latest = made
            others = [r.simulation for r in group.values()]
            if others and (reason := _why_not_with(others, latest)):
                log.debug("%s seed %d goes by itself: %s", latest.config.method, latest.config.seed, reason)
                yield group
                group = {}
            group[place] = _recording(requests[place], latest)
        if group:
            yield group


def _recording(request: RunSpec, simulation: Simulation) -> RunWriter[Simulation]:
    weights = simulation.model.tensors if request.objects.model is not None else None
    return RunWriter(simulation, resolved(simulation, request.objects), request.directory, weights)


def _check_all_fit(requests: Sequence[RunSpec], first: Simulation) -> None:
    """That methods and settings suit the data, of all that have the first's: before that one is trained."""
    for request in requests:
        if request.config.data == first.config.data and request.config.partition == first.config.partition:
            check_fit(request.config, request.chain, first.dataset, len(first.partition))
            if not request.started:
                check_effect(request.chain, first.dataset)


def _built(request: RunSpec, resume: bool, beside: Simulation | None) -> Simulation:
    directory, config, objects = request.directory, request.config, request.objects
    if directory and resume:
        objects = directory.with_initial(objects)
    if directory and directory.started and config.engine.kind == "auto":  # the engine it was begun with
        config = replace(config, engine=replace(config.engine, kind=directory.config().engine.kind))
    return build(config, objects, directory.states if directory else None, beside)


def _why_not_with(others: Sequence[Simulation], one: Simulation) -> str | None:
    if not (isinstance(others[0].engine, Local) and isinstance(one.engine, Local)):
        return "their clients are elsewhere"
    return why_apart(others[0].local, one.local) or (None if fit([*others, one]) else "there is too little memory")
