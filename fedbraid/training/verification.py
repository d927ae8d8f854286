"""Verification of recorded runs: every file against the checksums that were written with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedbraid.errors import UserError, first_line
from fedbraid.storage.files import damaged
from fedbraid.storage.manifest import check_file, read_manifest
from fedbraid.training.run_directory import RunDirectory


@dataclass(frozen=True)
class Verified:
    """The result for one run. `partly` means that all that can be checked is as it was written."""

    verdict: Literal["verified", "partly", "damaged"]
    detail: str


def runs_in(place: Path) -> list[Path]:
    """Return the run directories at or below a path."""
    if (place / "config.toml").exists():
        return [place]
    return sorted(file.parent for file in place.rglob("config.toml"))


def verify_run(path: Path) -> Verified:
    """Check all files of a run; the first that is not as it was written is named."""
    directory = RunDirectory(path)
    try:
        rounds = len(directory.rounds())
        directory.config()
        if (manifest := read_manifest(path)) is not None:
            for name in manifest:
                check_file(path, name, manifest)
            if directory.summary().get("rounds", rounds) != rounds:
                raise damaged(directory.log, f"it has {rounds} rounds, which is not what the summary says")
            return Verified("verified", f"{rounds} rounds, {len(manifest)} files")
        saved = directory.check_checkpoint()
    except (UserError, OSError, ValueError) as error:
        return Verified("damaged", first_line(error))
    if saved is None:
        return Verified("partly", f"{rounds} rounds; no checkpoint yet, so there are no checksums")
    if "seal" not in saved:
        return Verified("partly", f"{rounds} rounds; recorded by a version that wrote no checksums")
    return Verified("partly", f"not over: checked up to its checkpoint after round {saved['round']}")
