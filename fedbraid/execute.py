"""Runs that are asked for, carried out: one after the other, or together where they can share a stack."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from traceback import clear_frames
from typing import Any, Generic, TypeVar

from torch import Tensor

from fedbraid import data, models, privacy
from fedbraid.config import Config, Named, optimizer_of, plain
from fedbraid.core.chain import Chain
from fedbraid.core.varied import form
from fedbraid.engines.joint import why_apart
from fedbraid.engines.local import Local
from fedbraid.errors import UserError
from fedbraid.experiment import Experiment, Given, build, check_brought, check_fit
from fedbraid.heard import refuse_unheard
from fedbraid.models.outputs import answering_logits
from fedbraid.registry import Entry
from fedbraid.report.summarise import summarise
from fedbraid.results import Run
from fedbraid.rounds import Federation
from fedbraid.runs import RunDirectory
from fedbraid.together import Lines, Together, fit

log = logging.getLogger("fedbraid")

Some = TypeVar("Some", bound=Federation)


class Stop(Enum):
    """What `on_round` may answer."""

    STOP = "stop"


STOP = Stop.STOP
"""The answer of `on_round` that ends a run before its last round."""
OnRound = Callable[[dict[str, Any], Config], object]
"""Told of each round, by its line of the log and the run's configuration. Its answers are ignored, but for `STOP`."""
Refused = Callable[[int, UserError], None]
"""Told of a run, by its place, that cannot be made, and why."""
Failed = Callable[[int, Exception], None]
"""Told of a run, by its place, that went wrong on its way, or that cannot be made after others have begun."""


class FromCaller(Exception):
    """What `on_round` raised. It is no failure of a run's, and a StopIteration would not get through generators."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@dataclass(frozen=True)
class Request:
    """A run that is asked for."""

    config: Config
    given: Given
    directory: RunDirectory | None = None

    @property
    def form(self) -> str:
        """The same for runs that may share a stack: they differ in numbers and seeds, or in who holds what."""
        config = self.config
        return repr((form(self.chain, optimizer_of(config)), config.data, config.augment, config.model))

    @property
    def chain(self) -> Chain:
        return self.given.chain_of(self.config)

    def check_names(self) -> None:
        """Data, partition, network, optimiser: what is named must exist, and have the options that it is given."""
        config = self.config
        optimizer_of(config)
        if self.given.data is None:
            data.find_dataset(config.data.name, config.data.options)
        if self.given.partition is None:
            data.find_partition(config.partition.name, config.partition.options)
        if self.given.model is None:
            models.find_network(config.model.name, config.model.options)

    def check_brought(self) -> None:
        """Whether a run that was begun with objects of Python has them again."""
        if self.directory and self.directory.started:
            how = "go on in Python: fedbraid.run(…, {table}=…, out=…, resume=True)"
            check_brought(self.directory.config(), self.given, self.directory.path, how)

    def check_length(self) -> None:
        """Whether a run that was begun can have as many rounds as it is asked for now."""
        if self.directory and self.directory.started:
            self.directory.check_length(self.config.rounds, self.chain)

    def check_unused(self) -> None:
        """That there is no run yet where a new one is asked for."""
        if self.directory and self.directory.started:
            raise holds_a_run(self.directory)


def execute(
    requests: Sequence[Request],
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    together: bool = True,
    failed: Failed | None = None,
) -> dict[int, Run]:
    """Run what is left to run of each: the runs by their place in `requests`, without those that `failed` is told of.

    What `on_round` raises comes out as it is.
    """
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
    requests: Sequence[Request],
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
        refuse_unheard([(request.config, request.chain) for request in requests])
        for request in requests:
            if resume:
                request.check_brought()
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

    requests: Sequence[Request]
    resume: bool
    on_round: OnRound | None
    stop: Callable[[], bool]
    failed: Failed | None
    engines: ExitStack
    early: bool  # nothing was trained before, so that a mistake in what is asked for comes in time

    def of(self, group: dict[int, Recording[Experiment]]) -> Iterator[tuple[int, Run]]:
        for recording in group.values():
            self.engines.callback(recording.experiment.engine.close)
        left = list(group)
        try:
            for place, run in _carried_out(group, self.resume, self.on_round, self.stop):
                left.remove(place)
                yield place, run
            return
        except FromCaller:
            raise
        except Exception as error:
            in_time = self.early and not all(recording.opened for recording in group.values())
            if self.failed is None or in_time or not left:
                raise
            if len(left) == 1:
                _give_up(left[0], error, self.failed)
            else:
                clear_frames(error.__traceback__)
        beside = group[left[0]].experiment
        group.clear()
        if len(left) > 1:  # whose fault it was shows where each goes by itself
            yield from self._apart(left, beside)

    def _apart(self, places: Sequence[int], beside: Experiment) -> Iterator[tuple[int, Run]]:
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
    group: dict[int, Recording[Experiment]], resume: bool, on_round: OnRound | None, stop: Callable[[], bool]
) -> Iterator[tuple[int, Run]]:
    """Runs that go together, with their places, as soon as they are over."""
    with ExitStack() as all_locks:
        locks = {place: all_locks.enter_context(ExitStack()) for place in group}
        for place, recording in group.items():
            locks[place].enter_context(recording.locked())
            recording.check(resume)
        for recording in group.values():
            recording.open()
            recording.opened = True
        for place in _rounds(group, on_round, stop):
            run = group[place].result()
            locks[place].close()  # the directory is the receiver's now
            yield place, run


def _rounds(
    group: dict[int, Recording[Experiment]], on_round: OnRound | None, stop: Callable[[], bool]
) -> Iterator[int]:
    """The rounds of runs that go together; the places of those that are over, as soon as they are."""
    places, recordings = list(group), list(group.values())
    lock_step = Together([r.experiment for r in recordings])
    yield from (place for place, recording in group.items() if recording.experiment.finished)
    unread, stopped = list[Lines](), False
    while (going := lock_step.going) and not stopped:
        unread.append(lock_step.launch())
        stopped = stop()
        waits = stopped or not lock_step.runs_ahead or any(recordings[k].is_due for k in going)
        while len(unread) > (not waits):
            for k, line in unread.pop(0)().items():
                recordings[k].note(line, on_round)
                if recordings[k].stopped:
                    lock_step.stopped.add(k)
                    waits = True  # for the round that a GPU may have begun meanwhile, which is its last one
        for k in going:
            if k in lock_step.stopped and not recordings[k].experiment.finished:
                recordings[k].end()
        yield from (places[k] for k in going if k not in lock_step.going)
    for k in lock_step.going:
        recordings[k].save()


def _groups(
    requests: Sequence[Request], resume: bool, together: bool, impossible: Failed, *, check_all: bool
) -> Iterator[dict[int, Recording[Experiment]]]:
    """Runs that go together, by their place in `requests`. Mistakes come before any file: nothing is written yet."""
    alike: dict[str, list[int]] = {}
    for place, request in enumerate(requests):
        alike.setdefault(request.form if together else str(place), []).append(place)
    latest: Experiment | None = None
    for places in alike.values():
        group: dict[int, Recording[Experiment]] = {}
        for place in places:
            try:
                made = _built(requests[place], resume, latest)
                if latest is None and check_all:
                    _check_all_fit(requests, made)
            except Exception as error:
                impossible(place, error)
                continue
            latest = made
            others = [r.experiment for r in group.values()]
            if others and (reason := _why_not_with(others, latest)):
                log.debug("%s seed %d goes by itself: %s", latest.config.method, latest.config.seed, reason)
                yield group
                group = {}
            group[place] = _recording(requests[place], latest)
        if group:
            yield group


def _recording(request: Request, experiment: Experiment) -> Recording[Experiment]:
    weights = experiment.model.tensors if request.given.model is not None else None
    return Recording(experiment, resolved(experiment, request.given), request.directory, weights)


def _check_all_fit(requests: Sequence[Request], first: Experiment) -> None:
    """That methods and settings suit the data, of all that have the first's: before that one is trained."""
    for request in requests:
        if request.config.data == first.config.data and request.config.partition == first.config.partition:
            check_fit(request.config, request.chain, first.dataset, len(first.partition))


def _built(request: Request, resume: bool, beside: Experiment | None) -> Experiment:
    directory, config, given = request.directory, request.config, request.given
    if directory and resume:
        given = directory.as_begun(given)
    if directory and directory.started and config.engine.kind == "auto":  # the engine it was begun with
        config = replace(config, engine=replace(config.engine, kind=directory.config().engine.kind))
    return build(config, given, directory.states if directory else None, beside)


def _why_not_with(others: Sequence[Experiment], one: Experiment) -> str | None:
    if not (isinstance(others[0].engine, Local) and isinstance(one.engine, Local)):
        return "their clients are elsewhere"
    return why_apart(others[0].local, one.local) or (None if fit([*others, one]) else "there is too little memory")


@dataclass(eq=False)
class Recording(Generic[Some]):
    """A run on its way, and what is written of it."""

    experiment: Some
    config: Config  # resolved
    directory: RunDirectory | None
    weights: Mapping[str, Tensor] | None = None  # to begin with, where no seed makes them again
    rounds: list[dict[str, Any]] = field(default_factory=list)
    saved: int = 0  # the round of the last checkpoint
    opened: bool = False  # so that what goes wrong now is no mistake in what was asked for
    stopped: bool = False  # by who is told of its rounds

    def locked(self) -> AbstractContextManager[None]:
        return self.directory.locked() if self.directory else nullcontext()

    def check(self, resume: bool) -> None:
        """A directory that holds a run is written to only to continue that run."""
        if not self.directory:
            return
        if not self.directory.started:
            self.directory.check_vacant()
            return
        if not resume:
            raise holds_a_run(self.directory)
        self.directory.check_same(self.config)
        self.directory.check_length(self.config.rounds, self.experiment.chain)

    def open(self) -> None:
        """Begin, or go on from the last checkpoint."""
        if not self.directory:
            return
        if self.directory.started:
            self.directory.load(self.experiment)
            self.saved = self.experiment.server.round
            if (before := self.directory.config().rounds) < self.config.rounds:
                log.warning("%s goes on from %d to %d rounds", self.directory.path, before, self.config.rounds)
                self.directory.lengthen(self.config)
            if not self.experiment.finished:
                self.directory.reopen()
        else:
            self.directory.begin(self.config, self.weights)
        self.rounds = self.directory.rounds()
        if self.experiment.finished and not self.directory.complete:
            self.directory.finish(self.experiment, self.summary())

    def note(self, line: dict[str, Any], on_round: OnRound | None) -> None:
        """A round is over."""
        self.rounds.append(line)
        is_latest = line["round"] == self.experiment.server.round
        if self.directory:
            self.directory.append(line)
        if is_latest and self.is_due:
            self.save()
        if on_round and on_round(line, self.config) is STOP:
            self.stopped = True
        if is_latest and self.experiment.finished:
            self.end()

    def end(self) -> None:
        """No round comes after this one, or none that is waited for."""
        self.save()
        if self.directory:
            self.directory.finish(self.experiment, self.summary())

    @property
    def is_due(self) -> bool:
        """Whether the state after the latest round is to be saved."""
        return self.experiment.finished or self.experiment.server.round % self.config.save.every == 0

    def save(self) -> None:
        """A checkpoint, if there is something new to save."""
        if self.directory and self.experiment.server.round > self.saved:
            self.directory.save(self.experiment)
            self.saved = self.experiment.server.round

    def summary(self) -> dict[str, Any]:
        summary = summarise(self.rounds, self.config.evaluate.target or None)
        return summary | privacy.report(self.experiment.chain, self.experiment.released, self.experiment.drawn)

    def result(self) -> Run:
        place = self.directory.path if self.directory else None
        counts, model = self.experiment.label_table, answering_logits(self.experiment.module())
        return Run(self.config, self.rounds, self.summary(), counts, model, place, self.experiment.chain.averaging)


def holds_a_run(directory: RunDirectory) -> UserError:
    return UserError(f"{directory.path} already holds a run; add --resume to continue it, or choose another --out")


def resolved(experiment: Experiment, given: Given) -> Config:
    """The configuration with every default written out, so that it says how the run was made."""
    config = experiment.config
    data_options = {} if given.data else options_of(data.describe(), config.data)
    split_options = {} if given.partition is not None else options_of(data.PARTITIONS, config.partition)
    model_options = config.model.options if given.model is not None else options_of(models.describe(), config.model)
    return replace(
        with_numbers(experiment),
        data=replace(config.data, options=data_options),
        partition=replace(config.partition, options=split_options, clients=experiment.setup.population),
        model=replace(config.model, options=model_options),
        engine=replace(config.engine, kind=experiment.engine.kind),
    )


def with_numbers(federation: Federation) -> Config:
    """The configuration with every number of the strands and the optimiser."""
    config = federation.config
    return replace(
        config,
        strands={s.name: {f.name: plain(getattr(s, f.name)) for f in fields(s)} for s in federation.chain},  # type: ignore[arg-type]
        optimizer=replace(config.optimizer, options=asdict(federation.optimizer)),  # type: ignore[call-overload]
    )


def options_of(entries: Iterable[Entry[Any]], named: Named) -> dict[str, Any]:
    """The options of what is named, defaults included; None cannot be written and is the default anyway."""
    entry = next(e for e in entries if e.name == named.name)
    return {key: value for key, value in (entry.options | named.options).items() if value is not None}
