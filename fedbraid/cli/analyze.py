"""`fedbraid analyze`: what papers explain their methods by, of recorded runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedbraid.cli import listings
from fedbraid.cli.shared_options import DataDir, Json, Net, entry_table, out, out_option, print_json

if TYPE_CHECKING:
    from fedbraid.analyses import Analysis

USUAL = "cost,drift,fairness,forgetting"


def analyze(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN…]", help="Run directories, or one of a comparison. None: list the analyses."),
    ] = None,
    what: Annotated[
        str, typer.Option("--what", help="Analyses, such as drift,features(clients=5); all = every one of them.")
    ] = USUAL,
    place: Annotated[Path | None, out_option("Directory of the results.", "RUN/analyses")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.", show_default="as the run")] = "",
    data_dir: DataDir = None,
    strand: Annotated[
        list[str] | None,
        typer.Option("--strand", metavar="FILE.py:CLASS", help="A strand of your own that the run's method names."),
    ] = None,
    model: Net = None,
    as_json: Json = False,
) -> None:
    """Analyse recorded runs: tables (CSV), numbers (JSON) and pictures (PNG), which also go into report.html."""
    from fedbraid.analyses.index import OF_ONE, OF_SEVERAL
    from fedbraid.analyses.reporting import write
    from fedbraid.training.user_code import load_network, load_strands
    from fedbraid.training.user_objects import UserObjects

    if not runs:
        known = listings.describe((*OF_ONE, *OF_SEVERAL))
        if as_json:
            print_json(listings.without_text(known))
        else:
            out.print(entry_table("analysis", known))
        return
    names = [e.name for e in (*OF_ONE, *OF_SEVERAL)] if what == "all" else listed(what)
    objects = UserObjects(model=load_network(model), strands=load_strands(strand), data_dir=data_dir)
    made = write(runs, names, place, objects=objects, device=device)
    if as_json:
        print_json({str(path): analysis.numbers for path, analysis in made})
        return
    for path, analysis in made:
        out.print(_numbers(analysis))
        out.print(f"{path}", soft_wrap=True, highlight=False, markup=False)


def listed(what: str) -> list[str]:
    """The parts of `what` between commas that are in no brackets.

    >>> listed("drift, features(clients=3, samples=9)")
    ['drift', 'features(clients=3, samples=9)']
    """
    return [part.strip() for part in re.split(r",(?![^(]*\))", what) if part.strip()]


def _numbers(analysis: Analysis) -> Table:
    from fedbraid.report.words import amount

    table = Table(analysis.title, "", box=None, header_style="bold", title_justify="left")
    for key, value in analysis.numbers.items():
        table.add_row(key, amount(value))
    return table
