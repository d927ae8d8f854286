"""Analyses on disk: beside their runs, and in the runs' reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedbraid.analyses import Analysis, analyze, of_several
from fedbraid.analyses.recorded import Recorded
from fedbraid.errors import UserError
from fedbraid.report.analysed import FOLDER, refresh
from fedbraid.training.results import write_report
from fedbraid.training.run_directory import SEEDS
from fedbraid.training.user_objects import UserObjects


def write(
    places: Sequence[Path], what: Sequence[str], out: Path | None = None, *, objects: UserObjects, device: str = ""
) -> list[tuple[Path, Analysis]]:
    """Make analyses of recorded runs, or of the runs of a comparison, and write them; each with its picture's path.

    Those of one run go to RUN/analyses and show in RUN/report.html, those of all the runs of a comparison likewise.
    With `out` they go there instead, and into no report.
    """
    groups = {place: runs_in(place) for place in places}
    runs = [run for group in groups.values() for run in group]
    joint, single = [t for t in what if of_several(t)], [t for t in what if not of_several(t)]
    if joint and not out and len(places) > 1:
        raise UserError(f"{joint[0]} looks at all of these runs at once; say with --out where its results go")
    made: list[tuple[Path, Analysis]] = []

    def make(names: list[str], of: Sequence[Path], place: Path) -> None:
        analyses = analyze(of, names, objects=objects, device=device)
        made.extend((analysis.write(out or place / FOLDER)[-1], analysis) for analysis in analyses)
        if analyses and not out and not refresh(place):
            recorded = [Recorded(run, objects, device) for run in of]
            write_report(place, [run.record for run in recorded], recorded[0].config)

    if out and len(runs) > 1 and single:
        raise UserError(f"{single[0]} looks at one run at a time; leave --out away, or name one run")
    for run in runs:
        make(single, [run], run)
    make(joint, runs, places[0])
    return made


def runs_in(place: Path) -> list[Path]:
    """A run directory itself, or the runs of a comparison."""
    if (place / "config.toml").exists():
        return [place]
    found = sorted(file.parent for file in place.glob(SEEDS))
    if not found:
        raise UserError(f"{place} holds no run; name a directory that `fedbraid run` or `fedbraid compare` wrote")
    return found
