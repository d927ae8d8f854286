"""Running what a study still lacks. What is finished is never run again; what was begun goes on where it stood.

OUT/runs/<digest>/seed-<k>.json          a finished run (`studies.run_records`)
OUT/unfinished/<digest>/seed-<k>/        the run directory of one that is not finished yet
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from fedbraid.config.schema import to_dict
from fedbraid.core.strand import Strand
from fedbraid.engines.device import device_of
from fedbraid.errors import UserError, first_line
from fedbraid.studies import run_records
from fedbraid.studies.file_digests import source_of
from fedbraid.studies.run_records import Record, record_of
from fedbraid.studies.study_plan import PlannedRun, missing_data
from fedbraid.training.callbacks import CallbackError
from fedbraid.training.failures import sentence
from fedbraid.training.results import Run, environment
from fedbraid.training.run_directory import RunDirectory
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.run_writer import OnRound
from fedbraid.training.scheduler import Listener, iterate_runs
from fedbraid.training.user_objects import UserObjects

Note = Callable[[str], None]
Analyze = Callable[[Path, str, UserObjects], Mapping[str, float]]
"""The headline numbers (`name.quantity`) of an analysis, as it is written, of the run in a directory."""


@dataclass(frozen=True)
class State:
    """The progress of a plan's runs."""

    finished: tuple[PlannedRun, ...]
    begun: tuple[PlannedRun, ...]
    untouched: tuple[PlannedRun, ...]
    without_data: dict[str, tuple[PlannedRun, ...]]
    """Runs whose data is not here, by what would help."""
    refused: tuple[PlannedRun, ...] = ()
    """Runs that cannot be made as they are asked for."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why, by digest; nothing of those that went wrong on their way."""

    @property
    def pending(self) -> tuple[PlannedRun, ...]:
        return tuple(run for run in self.begun + self.untouched if run not in self.refused)


def state(runs: Sequence[PlannedRun], out: Path, data_dir: Path | None = None) -> State:
    done, begun, untouched = list[PlannedRun](), list[PlannedRun](), list[PlannedRun]()
    without: dict[str, tuple[PlannedRun, ...]] = {}
    ways: dict[tuple[str, str], str] = {}  # many runs have the same data
    for run in runs:
        wanted = run.config.data.name, str(run.config.data.options.get("path"))
        if is_recorded(run, out):
            done.append(run)
            continue
        if wanted not in ways:
            ways[wanted] = missing_data(run.config, data_dir)
        if way := ways[wanted]:
            without[way] = (*without.get(way, ()), run)
        else:
            (begun if unfinished(out, run).started else untouched).append(run)
    return State(tuple(done), tuple(begun), tuple(untouched), without)


def is_recorded(run: PlannedRun, out: Path) -> bool:
    if not run.analyze:
        return run_records.exists(out, run.digest, run.config.seed)
    record = run_records.read(out, run.digest, run.config.seed)
    return record is not None and record.has(run.analyze)


def unfinished(out: Path, run: PlannedRun) -> RunDirectory:
    return RunDirectory(out / "unfinished" / run.digest / f"seed-{run.config.seed}")


def headline(directory: Path, text: str, objects: UserObjects) -> Mapping[str, float]:
    from fedbraid.analyses import headline  # which most studies do without

    numbers: Mapping[str, float] = headline(directory, [text], objects=objects)
    return numbers


def conduct(
    runs: Sequence[PlannedRun],
    out: Path,
    *,
    resume: bool = False,
    minutes: float | None = None,
    data_dir: Path | None = None,
    own: tuple[type[Strand], ...] = (),
    on_round: OnRound | None = None,
    note: Note = lambda text: None,
    analyze: Analyze = headline,
) -> State:
    """Run what is not recorded yet; where the runs stand afterwards.

    All of it is one execution, so that runs that can share a stack do. Each is recorded as soon as it is finished.
    After `minutes` the round is ended, what goes on is saved, and the next call continues it. A run that cannot be made
    is told of, and the others go on.
    """
    began = monotonic()
    now = state(runs, out, data_dir)
    _look_through(now, out, resume)
    data_sets = list(dict.fromkeys(repr(run.config.data) for run in runs))
    pending = sorted(now.pending, key=lambda run: data_sets.index(repr(run.config.data)))  # each is loaded once
    objects = UserObjects(strands=own, data_dir=data_dir)
    specs = [RunSpec.of(run.config, objects, unfinished(out, run)) for run in pending]
    sources = [source_of(run.config) for run in pending]  # as they are read now, whatever comes of them meanwhile
    left, impossible, reasons = len(pending), dict[int, str](), dict[str, str]()

    def refused(place: int, error: UserError) -> None:
        if str(error) not in impossible.values():
            note(f"{pending[place].cells[0]} cannot be run: {error}")
        impossible[place] = reasons[pending[place].digest] = str(error)

    def failed(place: int, error: Exception) -> None:
        if isinstance(error, OSError):  # a full disk, say, of which the others would have no more
            raise error
        run, reason = pending[place], sentence(error) or f"{type(error).__name__}: {first_line(error)}"
        note(f"{run.cells[0]}, seed {run.config.seed}, went wrong, and the others go on: {reason}")
        impossible[place] = reason

    def out_of_time() -> bool:
        return minutes is not None and monotonic() - began >= 60 * minutes

    listener = Listener(on_round, refused, failed, out_of_time)
    try:
        for place, done in iterate_runs(specs, resume=True, listener=listener):
            run, left = pending[place], left - 1
            earlier = run_records.read(out, run.digest, run.config.seed)
            run_records.write(out, _record(run, done, earlier, objects, analyze, sources[place]))
            _forget(out, run)
            others = f" and {len(run.cells) - 1} more" if len(run.cells) > 1 else ""
            note(f"{run.cells[0]}{others}, seed {run.config.seed}, is recorded; {left - len(impossible)} to go")
    except CallbackError as raised:
        raise raised.error from None
    refusals = tuple(pending[place] for place in impossible)
    return replace(state(runs, out, data_dir), refused=refusals, reasons=reasons)


def _look_through(now: State, out: Path, resume: bool) -> None:
    """Check the records that are there before anything is trained: refuse damaged and outdated ones."""
    for run in now.finished:
        _check(run, out)
        _forget(out, run)  # left by a process that was killed before it came to that
    if now.begun and not resume:
        raise UserError(
            f"{unfinished(out, now.begun[0]).path} holds an unfinished run of this study, one of {len(now.begun)}; "
            "add --resume to continue, or choose another --out"
        )


def _check(run: PlannedRun, out: Path) -> None:
    """Refuse a record of files that have changed: a run's digest has only their names."""
    source, key = source_of(run.config), (run.digest, run.config.seed)
    record, found = run_records.read(out, *key), run_records.find(out, *key)
    if record and found and record.source and source and record.source != source:
        raise UserError(
            f"the files of {run.cells[0]} have changed since it was recorded; choose another --out, "
            f"or {found.remedy} to run it again"
        )


def _record(
    run: PlannedRun, done: Run, earlier: Record | None, objects: UserObjects, analyze: Analyze, source: str = ""
) -> Record:
    """The record of a finished run. Analyses that an earlier record has are kept."""
    analyses = dict(earlier.analyses) if earlier else {}
    for text in run.analyze:
        if text not in analyses and done.directory:
            analyses[text] = {key.partition(".")[2]: n for key, n in analyze(done.directory, text, objects).items()}
    engine = to_dict(done.config)["engine"] | {"device": str(device_of(done.config.engine.device))}
    return record_of(
        run.digest, to_dict(run.config), done.rounds, done.label_counts, engine, environment(), analyses, source
    )


def _forget(out: Path, run: PlannedRun) -> None:
    """The directory of a run that is recorded goes, and so do empty ones above it."""
    place = unfinished(out, run).path
    shutil.rmtree(place, ignore_errors=True)
    for above in (place.parent, place.parent.parent):
        if above.is_dir() and not any(above.iterdir()):
            above.rmdir()
