"""Runs that are asked for, carried out: one after the other, or together where they can share a stack."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

from torch import Tensor

from fedbraid import data, models, privacy
from fedbraid.config import Config, Named, optimizer_of, plain
from fedbraid.core.chain import Chain
from fedbraid.core.varied import form
from fedbraid.engines.joint import why_apart
from fedbraid.engines.local import Local
from fedbraid.errors import UserError
from fedbraid.experiment import Experiment, Given, build, check_brought
from fedbraid.heard import refuse_unheard
from fedbraid.registry import Entry
from fedbraid.report.summarise import summarise
from fedbraid.results import Run
from fedbraid.rounds import Federation
from fedbraid.runs import RunDirectory
from fedbraid.together import Lines, Together, fit

log = logging.getLogger("fedbraid")

Some = TypeVar("Some", bound=Federation)
OnRound = Callable[[dict[str, Any], Config], None]
Refused = Callable[[int, UserError], None]
"""Told of a run, by its place, that cannot be made, and why."""


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


def execute(
    requests: Sequence[Request], *, resume: bool = False, on_round: OnRound | None = None, together: bool = True
) -> list[Run]:
    """Run what is left to run of each."""
    done = dict(finished(requests, resume=resume, on_round=on_round, together=together))
    return [done[place] for place in range(len(requests))]


def finished(
    requests: Sequence[Request],
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    together: bool = True,
    stop: Callable[[], bool] = lambda: False,
    refused: Refused | None = None,
) -> Iterator[tuple[int, Run]]:
    """Run what is left to run of each; every run with its place in `requests`, as soon as it is over.

    Once `stop` says so, after a round, what goes on is saved and nothing else is begun. A run that cannot be made ends
    all, unless somebody listens to that: then the others go on.
    """
    if refused is None:
        refuse_unheard([(request.config, request.chain) for request in requests])
    if resume and refused is None:
        for request in requests:
            request.check_brought()
            request.check_length()  # of all, before any is made longer
    with ExitStack() as engines:
        for group in _groups(requests, resume, together, refused):
            engines.pop_all().close()  # of the group before, whose workers this one has now
            for recording in group.values():
                engines.callback(recording.experiment.engine.close)
            yield from _carried_out(group, resume, on_round, stop)
            if stop():
                return


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
        yield from (places[k] for k in going if recordings[k].experiment.finished)
    for k in lock_step.going:
        recordings[k].save()


def _groups(
    requests: Sequence[Request], resume: bool, together: bool, refused: Refused | None
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
                latest = _built(requests[place], resume, latest)
            except UserError as error:
                if refused is None:
                    raise
                refused(place, error)
                continue
            others = [r.experiment for r in group.values()]
            if others and (reason := _why_not_with(others, latest)):
                log.debug("%s seed %d goes by itself: %s", latest.config.method, latest.config.seed, reason)
                yield group
                group = {}
            given, directory = requests[place].given, requests[place].directory
            weights = latest.model.tensors if given.model is not None else None
            group[place] = Recording(latest, resolved(latest, given), directory, weights)
        if group:
            yield group


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
            raise UserError(
                f"{self.directory.path} already holds a run; add --resume to continue it, or choose another --out"
            )
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
        if on_round:
            on_round(line, self.config)
        if is_latest and self.experiment.finished and self.directory:
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
        return summary | privacy.report(self.experiment.chain, self.config.rounds)

    def result(self) -> Run:
        place = self.directory.path if self.directory else None
        experiment = self.experiment
        return Run(self.config, self.rounds, self.summary(), experiment.label_table, experiment.module(), place)


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
