"""`fedbraid report`: the report on recorded runs, made again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedbraid.cli.shared_options import DataDir, Json, Net, Own, out, print_json


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run or of a comparison.")],
    data_dir: DataDir = None,
    strand: Own = None,
    model: Net = None,
    as_json: Json = False,
) -> None:
    """Write the report on a run or a comparison again, from its recorded files.

    Nothing is trained. Runs that were interrupted are reported up to their last recorded round.
    """
    from fedbraid.strands.parser import own_strands
    from fedbraid.training.recorded_reports import report_recorded
    from fedbraid.training.user_code import load_network, load_strands
    from fedbraid.training.user_objects import UserObjects

    objects = UserObjects(model=load_network(model), strands=own_strands(load_strands(strand)), data_dir=data_dir)
    files = report_recorded(run, objects)
    if as_json:
        print_json({"directory": str(run), "files": [str(file) for file in files]})
    else:
        out.print(f"report: {run / 'report.html'}", soft_wrap=True, highlight=False, markup=False)
