"""Folders of studies: one for each table's report, beside those of the runs; refused before they are needed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedbraid.errors import UserError
from fedbraid.storage.folders import directory_name
from fedbraid.studies.study_plan import Table

RUNS = "runs", "unfinished", "tuned", "verdicts"
"""Folders that are no report's."""


def report_folders(tables: Mapping[str, Table], out: Path) -> dict[str, Path]:
    """Return the folder of each table's report, by the name that a user asks for; refuse it before any training."""
    folders: dict[str, Path] = {}
    for asked, made in tables.items():
        folder = out / directory_name(made.recipe.name + made.changes.folder)
        if folder.name in RUNS:
            raise UserError(f"{asked} would be reported in {folder}, where runs are kept; give the file another name")
        other = next((earlier for earlier, taken in folders.items() if taken == folder), None)
        if other:
            raise UserError(f"{other} and {asked} would both be reported in {folder}; give one file another name")
        folders[asked] = folder
    places = [out, *(out / name for name in RUNS), *folders.values()]
    check_folders([*out.parents, *places])
    for place in (next(place for place in (out, *out.parents) if place.exists()), *places):
        if place.exists() and not os.access(place, os.W_OK | os.X_OK):
            raise UserError(f"nothing can be written to {place}; choose another --out")
    return folders


def check_folders(places: Iterable[Path]) -> None:
    """Refuse a path that is there and no folder."""
    for place in places:
        if os.path.lexists(place) and not place.is_dir():
            raise UserError(f"{place} is not a folder, which a study needs there; choose another --out")
