"""The commands about studies: the tables and figures of papers, run and put beside the paper's own numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.table import Table as Printed

from fedbraid.cli.shared_options import (
    DataDir,
    Device,
    Json,
    Own,
    Settings,
    err,
    interruptible,
    out,
    out_option,
    print_json,
)
from fedbraid.errors import UserError

if TYPE_CHECKING:
    from fedbraid.core.strand import Strand
    from fedbraid.studies.study_plan import Changes, Table
    from fedbraid.studies.study_runner import State
    from fedbraid.studies.table_results import Results

study_app = typer.Typer(
    help="Tables and figures of papers: run here, and reported beside the paper's.", no_args_is_help=True
)

LEFT = 3
"""The exit code of a study that was stopped by --minutes."""

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME…]", help="Recipes by name or pattern, or .toml files.", show_default="all"),
]
SomeNames = Annotated[list[str], typer.Argument(metavar="NAME…", help="Recipes by name or pattern, or .toml files.")]
Place = Annotated[Path, out_option("Where runs and reports are kept.")]
Scale = Annotated[Literal["full", "small"], typer.Option(help="small: fewer rounds and samples, for minutes on a CPU.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Runs of each cell.", show_default="as the recipe says")]
ToldSeeds = Annotated[
    int | None,
    typer.Option("--seeds", min=1, help="Runs of each cell.", show_default="as the recipe says, or all that there are"),
]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds of each run.", show_default="as the recipe says")]
RESULTS = Path("results")


@study_app.command("list")
def study_list(place: Place = RESULTS, data_dir: DataDir = None, as_json: Json = False) -> None:
    """The recipes there are, how many of their runs are finished here, and how many cannot be run for lack of data."""
    from fedbraid.studies import recipe_files
    from fedbraid.studies.report_folders import RUNS, check_folders
    from fedbraid.studies.study_plan import planned, table
    from fedbraid.studies.study_runner import state
    from fedbraid.studies.tuning import tuned

    check_folders([*place.parents, place, *(place / name for name in RUNS)])
    rows = []
    for recipe in map(recipe_files.read, recipe_files.files([])):
        made = tuned(table(recipe), place)
        runs = planned([made])
        now = state(runs, place, data_dir)
        lacking = sum(map(len, now.without_data.values()))
        cells = sum(not cell.skip for cell in made.cells.values())
        about = {"name": recipe.name, "paper": recipe.paper, "item": recipe.item, "title": recipe.title}
        rows.append(about | {"cells": cells, "runs": len(runs), "done": len(now.finished), "lacking": lacking})
    if as_json:
        print_json(rows)
        return
    printed = Printed(box=None, header_style="bold")
    shown = "name", "title", "cells", "runs", "done", "lacking"  # a name has the paper and the item in it
    for header in shown:
        printed.add_column("no data" if header == "lacking" else header, no_wrap=header != "title")
    for row in rows:
        printed.add_row(*(escape(str(row[key])) if row[key] or key != "lacking" else "" for key in shown))
    out.print(printed)


@study_app.command("check")
def study_check(name: Names = None, strand: Own = None) -> None:
    """Check recipes: every cell's settings, method, partition and metric. Nothing is loaded or trained."""
    from fedbraid.studies import recipe_files
    from fedbraid.studies.study_plan import planned, table
    from fedbraid.training.user_code import load_strands

    wrong, own = 0, load_strands(strand)
    for file in recipe_files.files(name or []):
        try:
            made = table(recipe_files.load(file, own), own=own)
        except UserError as error:
            wrong += 1
            err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        else:
            cells = sum(not cell.skip for cell in made.cells.values())
            _say(out, f"{file.stem}: {cells} cells, {len(planned([made]))} runs")
    if wrong:
        raise typer.Exit(1)


@study_app.command("run")
def study_run(
    name: SomeNames,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CELLS", help="'ROW', 'ROW @ COLUMN' or '@ COLUMN', by name or pattern; many times."),
    ] = None,
    scale: Scale = "full",
    seeds: Seeds = None,
    rounds: Rounds = None,
    settings: Settings = None,
    shard: Annotated[str, typer.Option(metavar="I/N", help="Part I of N of the runs, for several machines.")] = "1/1",
    minutes: Annotated[float | None, typer.Option(min=0, help="Stop after so long; --resume goes on.")] = None,
    place: Place = RESULTS,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with runs that were begun.")] = False,
    device: Device = None,
    data_dir: DataDir = None,
    strand: Own = None,
    as_json: Json = False,
) -> None:
    """Run what is not finished yet of a table or figure, and report it beside the paper's numbers."""
    from fedbraid.studies import study_plan
    from fedbraid.studies.report_folders import report_folders
    from fedbraid.training.user_code import load_strands

    own = load_strands(strand)
    asked_for = _tables(name, _changes(scale, seeds, rounds, settings, device), own)
    folders = report_folders(asked_for, place)

    run_planned = partial(
        _run_planned,
        only=only or (),
        shard=shard,
        place=place,
        until=None if minutes is None else monotonic() + 60 * minutes,
        data_dir=data_dir,
        own=own,
    )
    tables, after = _run_tuned(asked_for, place, run_planned, resume=resume)
    waiting = sum(bool(cell.waits_for) for made in tables.values() for cell in study_plan.selected(made, only or ()))
    if waiting and not after.pending:
        _say(err, f"{waiting} cells wait for candidates of tuning that are not finished; another shard may have them")
    written = {}
    for asked, made in tables.items():
        if study_plan.selected(made, only or ()):
            shown = study_plan.as_recorded(made, place)
            call = _call(asked, place, strand)
            _report(shown, folders[asked], place, data_dir, call, show=not as_json, refused=after.reasons)
            written[made.recipe.name] = str(folders[asked])
    if as_json:
        print_json(
            {
                "finished": len(after.finished),
                "left": len(after.pending),
                "refused": len(after.refused),
                "reports": written,
            }
        )
    _end(after)
    if waiting:
        raise typer.Exit(LEFT)


def _run_tuned(
    asked_for: Mapping[str, Table], place: Path, run_planned: Callable[..., State], *, resume: bool
) -> tuple[dict[str, Table], State]:
    """Run candidates of tuning beside all cells that need none, choose, and then run the cells that waited.

    Returns:
        The tables with every choice that was made laid over them, and the progress of their runs.
    """
    from fedbraid.studies.tuning import choose, tuned

    tables = {asked: tuned(made, place) for asked, made in asked_for.items()}
    after = run_planned(tables, resume=resume)
    choices = dict.fromkeys(choice.words for made in tables.values() for choice in choose(made, place))
    for words in choices:
        _say(err, f"tuned: {words}")
    if choices and not after.pending:
        tables = {asked: tuned(made, place) for asked, made in asked_for.items()}
        after = run_planned(tables, resume=True)
    return tables, after


def _run_planned(
    tables: Mapping[str, Table],
    *,
    only: Sequence[str],
    shard: str,
    place: Path,
    until: float | None,
    data_dir: Path | None,
    own: tuple[type[Strand], ...],
    resume: bool,
) -> State:
    """Run what is missing of the tables, or of this shard of them, until a time of the monotonic clock."""
    from fedbraid.cli import run_views as cli_show
    from fedbraid.studies import study_plan
    from fedbraid.studies.study_runner import conduct, state

    planned = study_plan.planned(tables.values(), only)
    runs = study_plan.shard(planned, shard)
    if planned and not runs:
        others = len({run.digest for run in planned})
        _say(err, f"nothing to run: there are {others} different runs, and --shard {shard} has none of them")
    before = state(runs, place, data_dir)
    for way, without in before.without_data.items():
        _say(err, f"skipped: {len(without)} runs of {len({run.digest for run in without})} cells, because {way}")
    ahead = sum(run.config.rounds for run in before.pending)
    with interruptible(place), cli_show.progress(err, ahead, study_plan.cell_names(runs)) as on_round:
        return conduct(
            runs,
            place,
            resume=resume,
            minutes=None if until is None else max(0.0, until - monotonic()) / 60,
            data_dir=data_dir,
            own=own,
            on_round=on_round,
            note=lambda text: _say(err, text),
        )


def _end(after: State) -> None:
    """Print what is left to run; the exit code says so, too."""
    if after.refused:
        _say(err, f"{len(after.refused)} runs cannot be run as they are asked for")
    if after.pending:
        _say(err, f"stopped: {len(after.pending)} runs are left; the same command with --resume goes on")
        raise typer.Exit(LEFT)
    if after.refused or (after.without_data and not after.finished):
        raise typer.Exit(1)


@study_app.command("report")
def study_report(
    name: Names = None,
    scale: Scale = "full",
    seeds: ToldSeeds = None,
    rounds: Rounds = None,
    settings: Settings = None,
    place: Place = RESULTS,
    data_dir: DataDir = None,
    strand: Own = None,
) -> None:
    """Report what is finished of a table or figure, or of all that were begun, with the variants in OUT/notes.toml.

    Scale, rounds and settings are those that it was run with; another number of seeds replaces the report.
    """
    from fedbraid.studies.report_folders import check_folders, report_folders
    from fedbraid.studies.study_plan import as_recorded
    from fedbraid.studies.table_results import gathered, why_empty
    from fedbraid.studies.tuning import tuned
    from fedbraid.training.user_code import load_strands

    changes, own = _changes(scale, seeds, rounds, settings, None), load_strands(strand)
    if not name and not (place.is_dir() and any(place.iterdir())):
        check_folders([*place.parents, place])
        _say(err, _why_nothing(place))
        return
    with err.status("looking at what is finished"):
        tables = _tables(name, changes, own) if name else _possible(changes, own)
        if not name and not str(changes):
            tables |= _variants(place, changes, own)
        folders = report_folders(tables, place)
        begun = {asked: made for asked, made in tables.items() if _begun(made, folders[asked], place, name)}
    reported, empty = set[str](), dict[str, str]()
    for asked, made in begun.items():
        made = tuned(made, place)
        shown = made if seeds else as_recorded(made, place)
        found = gathered(shown, place, data_dir)
        if any(cell.values for cell in found.cells.values()):
            _write(shown, found, folders[asked], _call(asked.removesuffix(f" {made.changes}"), place, strand))
            reported.add(asked)
        else:
            empty[asked] = why_empty(shown, found)
    for asked in tables if name else () if reported else empty:
        if asked not in reported:
            run = " ".join(filter(None, [_call(asked, place, strand), str(changes)]))
            _say(err, _why_no_report(asked, place, run, empty.get(asked, "")))
    if not reported:
        if name:
            raise typer.Exit(1)
        if not empty:
            _say(err, _why_nothing(place))


@study_app.command("overview")
def study_overview(place: Place = RESULTS) -> None:
    """Put all reports of a folder on one page, the index of a page for each paper with the verdicts on its claims."""
    from fedbraid.studies.overview import write_overview
    from fedbraid.studies.report_folders import check_folders

    check_folders([*place.parents, place])
    written = write_overview(place)
    table = (place / "overview.md").read_text(encoding="utf-8")
    out.print(Markdown(table) if out.is_terminal else table, highlight=False, soft_wrap=True, markup=False)
    for path in written:
        if path.suffix != ".png":
            _say(out, f"{'overview' if path.parent == place else 'verdicts'}: {path}")


@study_app.command("pack")
def study_pack(place: Place = RESULTS) -> None:
    """Move the records of finished runs into compressed archives, one for each data set. All commands read both."""
    from fedbraid.studies import run_records
    from fedbraid.studies.report_folders import RUNS, check_folders

    check_folders([*place.parents, place, *(place / name for name in RUNS)])
    if not (records := run_records.all_in(place)):
        _say(err, f"nothing of any study is finished in {place}; `fedbraid study run NAME` runs one")
        raise typer.Exit(1)
    written = run_records.pack(place)
    size, archives = sum(path.stat().st_size for path in written), f"archive{'s' * (len(written) > 1)}"
    _say(out, f"packed {len(records)} records into {len(written)} {archives}, {size:,} bytes: {place / 'runs'}")


@study_app.command("unpack")
def study_unpack(place: Place = RESULTS) -> None:
    """Move every archived record back into a file of its own."""
    from fedbraid.studies import run_records

    _say(out, f"unpacked {run_records.unpack(place)} records: {place / 'runs'}")


def _why_no_report(asked: str, place: Path, run: str, lacking: str) -> str:
    """Why there is none of what is asked for, and the command that makes what is missing."""
    if not lacking:
        return f"nothing of {asked} is finished in {place}; `fedbraid study run {run}` runs it"
    return f"nothing of {asked} has a number in {place}: {lacking}; `fedbraid study run {run}` makes what is missing"


def _why_nothing(place: Path) -> str:
    """Why no report was made where no recipe was named."""
    from fedbraid.studies import run_records

    others = len(run_records.all_in(place))
    if not others:
        return f"nothing of any study is finished in {place}; `fedbraid study run NAME` runs one"
    return (
        f"{place} has {others} finished runs, but none of FedBraid's recipes as these options make them; name the "
        "recipe: its .toml file if it is your own, and --scale, --rounds and --set as it was run"
    )


def _changes(
    scale: str, seeds: int | None, rounds: int | None, settings: list[str] | None, device: str | None
) -> Changes:
    from fedbraid.studies.study_plan import Changes

    return Changes(scale == "small", seeds or 0, rounds or 0, tuple(settings or ()), device or "")


def _tables(names: list[str], changes: Changes, own: tuple[type[Strand], ...]) -> dict[str, Table]:
    """The tables, by what they are asked for as: a recipe's name, or the path of a file of one's own."""
    from fedbraid.studies import recipe_files
    from fedbraid.studies.study_plan import table

    return {
        recipe_files.called(file): table(recipe_files.load(file, own), changes, own)
        for file in recipe_files.files(names)
    }


def _possible(changes: Changes, own: tuple[type[Strand], ...]) -> dict[str, Table]:
    """The tables of all recipes that can be changed so; of one that cannot, nothing was begun."""
    from fedbraid.studies import recipe_files
    from fedbraid.studies.study_plan import table

    made: dict[str, Table] = {}
    refused: list[UserError] = []
    for file in recipe_files.files([]):
        try:
            made[recipe_files.called(file)] = table(recipe_files.read(file), changes, own)
        except UserError as error:
            refused.append(error)
    if not made:
        raise refused[0]
    return made


def _variants(place: Path, changes: Changes, own: tuple[type[Strand], ...]) -> dict[str, Table]:
    """The tables that were also run with other settings, as the folder's notes have them."""
    from fedbraid.studies import recipe_files
    from fedbraid.studies.study_notes import read_notes
    from fedbraid.studies.study_plan import table

    found = {}
    for variant in read_notes(place).variants:
        (file,) = recipe_files.files([variant.recipe])
        made = table(recipe_files.read(file), replace(changes, settings=variant.set), own)
        found[f"{variant.recipe} {made.changes}"] = made
    return found


def _begun(made: Table, folder: Path, place: Path, named: list[str] | None) -> bool:
    """Return whether some runs are finished; of calculated cells, whether they were reported or requested."""
    from fedbraid.studies.study_plan import has_records

    return bool(named) or folder.is_dir() if made.recipe.calculation else has_records(made, place)


def _call(asked: str, place: Path, strands: list[str] | None) -> str:
    """Return the arguments with which `study run` finds the same recipe, runs and strands."""
    where = f"--out {quote(str(place))}" if place != RESULTS else ""
    return " ".join(filter(None, [quote(asked), where, *(f"--strand {quote(one)}" for one in strands or ())]))


def _report(
    made: Table,
    folder: Path,
    place: Path,
    data_dir: Path | None,
    call: str,
    *,
    show: bool = True,
    refused: Mapping[str, str] | None = None,
) -> None:
    """Write the report of what is finished of a table, and show the table."""
    from fedbraid.studies.table_results import gathered

    _write(made, gathered(made, place, data_dir, refused), folder, call, show=show)


def _write(made: Table, found: Results, folder: Path, call: str, *, show: bool = True) -> None:
    from fedbraid.studies.report import write_report

    write_report(made.recipe, found, folder, call)
    if show:
        table = (folder / "table.md").read_text(encoding="utf-8")
        out.print(Markdown(table) if out.is_terminal else table, highlight=False, soft_wrap=True, markup=False)
        _say(out, f"report: {folder / 'report.html'}")


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)
