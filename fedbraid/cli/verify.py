"""`fedbraid verify`: whether recorded runs are as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedbraid.cli.shared_options import Json, out, print_json
from fedbraid.errors import UserError


def verify(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Run directories, or folders that hold some, such as a comparison."),
    ],
    as_json: Json = False,
) -> None:
    """Compare every file of recorded runs with the checksums that were written with it.

    The exit code is 1 if a file is damaged. Runs that are not over are checked as far as their last checkpoint; of runs
    that earlier versions recorded only the logs can be checked.
    """
    from fedbraid.training.verification import runs_in, verify_run

    found = [run for place in runs for run in runs_in(place)]
    if not found:
        raise UserError(f"{runs[0]} holds no run: no config.toml is in it or below it")
    results = {str(run): verify_run(run) for run in found}
    if as_json:
        print_json({run: vars(result) for run, result in results.items()})
    else:
        for run, result in results.items():
            colour = {"verified": "green", "damaged": "red"}.get(result.verdict, "yellow")
            out.print(f"[{colour}]{result.verdict:>10}[/]  {run}: {result.detail}", soft_wrap=True, highlight=False)
    if any(result.verdict == "damaged" for result in results.values()):
        raise typer.Exit(1)
