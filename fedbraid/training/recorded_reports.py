"""Reports that are made again from what runs recorded: finished, stopped and interrupted ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedbraid.errors import UserError
from fedbraid.training.loading import read_record
from fedbraid.training.results import write_report
from fedbraid.training.run_directory import SEEDS, RunDirectory
from fedbraid.training.user_objects import UserObjects
from fedbraid.version import __version__

ENVIRONMENT = {"report": f"made again by FedBraid {__version__}", "runs": "versions and machine were not recorded"}
"""A run does not record its environment, and the one of today may be another."""


def report_recorded(place: Path, objects: UserObjects | None = None) -> list[Path]:
    """Write the report on a run, or on the runs of a comparison, into its folder again. Nothing is trained.

    Runs that are not finished are reported up to their last recorded round.

    Args:
        place: the directory of a run or of a comparison.
        objects: strands, network and data directory of the user, as far as the runs need them for the clients' labels.

    Returns:
        The paths of what was written.

    Raises:
        UserError: the folder holds no run, no round is recorded, or a recorded file was changed.
    """
    directories = _directories(place)
    for directory in directories:
        if directory.over:
            directory.check_files("config.toml", directory.log.name, "summary.json")
    begun = [directory for directory in directories if directory.rounds()]
    if not begun:
        raise UserError(f"no round of {place} is recorded yet; continue it first, with --resume")
    records = [read_record(directory, objects or UserObjects()) for directory in begun]
    order = _recorded_order(place)
    records.sort(key=lambda record: order.index(record.label) if record.label in order else len(order))
    return write_report(place, records, begun[0].config(), _unfinished(directories), trained_in=ENVIRONMENT)


def _directories(place: Path) -> list[RunDirectory]:
    """Return a run, or the runs of a comparison by method and seed."""
    if RunDirectory(place).started:
        return [RunDirectory(place)]
    found = [RunDirectory(file.parent) for file in place.glob(SEEDS)]
    if not found:
        raise UserError(
            f"{place} holds no run and no comparison: no config.toml is in it, nor in METHOD/seed-N below it"
        )
    return sorted(found, key=lambda directory: (directory.path.parent.name, directory.config().seed))


def _recorded_order(place: Path) -> list[str]:
    """Return the methods in the order of the last report's table, which is that of the command; none without one."""
    try:
        rows = json.loads((place / "table.json").read_text(encoding="utf-8"))["rows"]
        return [row["method"] for row in rows]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # the folders' names are an order, too


def _unfinished(directories: Sequence[RunDirectory]) -> list[str]:
    """Return a remark on each run that has rounds left."""
    remarks = []
    for directory in directories:
        if not directory.over:
            config = directory.config()
            done = f"{len(directory.rounds())} of its {config.rounds} rounds are recorded"
            remarks.append(f"{config.called} seed {config.seed} is not finished: {done}")
    return remarks
