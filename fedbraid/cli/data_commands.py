"""The commands about data: which sets there are, what they hold, and who would hold what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedbraid.cli import listings
from fedbraid.cli.shared_options import (
    ConfigOption,
    DataDir,
    Json,
    Settings,
    entry_table,
    err,
    out,
    out_option,
    print_json,
)
from fedbraid.data.paths import Availability, data_directory
from fedbraid.errors import UserError

data_app = typer.Typer(help="Data sets and how they are split between clients.", no_args_is_help=True)

DataSet = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="A data set, or a file or folder of your own.", show_default="digits"),
]


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: Json = False) -> None:
    """The data sets there are, which of them are here, and the partitions there are."""
    listed, places, partitions = listings.data_sets(data_dir)
    if as_json:
        pairs = zip(listings.without_text(listed), places, strict=True)
        sets = [one | {"state": place.state, "folder": place.folder} for one, place in pairs]
        print_json({"data": sets, "partitions": listings.without_text(partitions)})
        return
    root = data_directory(data_dir)
    out.print(data_table(listed, places, root))
    out.print(
        f"Files are looked for in {root} (--data-dir, FEDBRAID_DATA). What is not here: fedbraid data get NAME",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    out.print()
    out.print(entry_table("partition", partitions))


def data_table(listed: Sequence[dict[str, Any]], places: Sequence[Availability], root: Path) -> Table:
    """Return every data set with where it is; `root` is the data directory."""
    table = Table("data set", "what it is", "where", box=None, header_style="bold")
    for one, place in zip(listed, places, strict=True):
        about = Text(one["summary"])
        if one["text"]:
            about.append(f"\n{one['text']}", style="dim")
        table.add_row(one["name"], about, Text(_where(place, root), overflow="fold"))
    return table


def _where(place: Availability, root: Path) -> str:
    if place.state == "yours":
        return "yours: data.path=…"
    if place.folder is None:
        return "not here" if place.state == "missing" else place.state
    return f"{place.folder.relative_to(root)}/"


@data_app.command("inspect")
def data_inspect(
    name: DataSet = None,
    settings: Settings = None,
    picture: Annotated[Path | None, typer.Option(help="Draw samples of its images, as a PNG file.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show a data set: counts, classes, users, and a few of its samples."""
    from fedbraid import data
    from fedbraid.cli import data_views as cli_data_show
    from fedbraid.cli.user_input import resolved
    from fedbraid.data.dataset_facts import facts

    refuse_other_pictures(picture)
    chosen = resolved(None, settings, data=name).data
    dataset = data.load(chosen.name, data_dir, **chosen.options)
    if picture:
        from fedbraid.report.plots import save
        from fedbraid.report.sheets import sheet

        save(sheet(dataset), picture)
    if as_json:
        print_json(facts(dataset))
        return
    cli_data_show.facts(out, facts(dataset))
    cli_data_show.images(out, dataset)
    if picture:
        out.print(f"picture: {picture}", soft_wrap=True, highlight=False, markup=False)


@data_app.command("partition")
def data_partition(
    name: DataSet = None,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", help='How it is split, such as "dirichlet(beta=0.5)".')
    ] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Number of clients.", show_default="10")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the split.", show_default="0")] = None,
    config: ConfigOption = None,
    settings: Settings = None,
    place: Annotated[Path | None, out_option("A directory for all pictures, page and numbers.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw it, as a PNG file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write it as one HTML page.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show a partition: sizes, labels and skew of every client."""
    from fedbraid import data
    from fedbraid.cli import split_views as cli_split_show
    from fedbraid.cli.user_input import resolved
    from fedbraid.report.partition_table import split_facts
    from fedbraid.training.simulation import divided_by, partition_of

    refuse_other_pictures(picture)
    chosen = resolved(config, settings, data=name, partition=partition, clients=clients, seed=seed)
    dataset = data.load(chosen.data.name, data_dir, **chosen.data.options)
    split = divided_by(chosen, dataset, partition_of(chosen, dataset)).training
    facts = split_facts(dataset, split) | {"command": cli_split_show.command(chosen, len(split), data_dir)}
    files = cli_split_show.write(facts, dataset.labels, place, picture, html)
    if as_json:
        print_json(facts)
        return
    cli_split_show.show(out, facts, dataset.labels)
    for file in files:
        out.print(f"written: {file}", soft_wrap=True, highlight=False, markup=False)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="A data set that comes as files.")],
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit of its repository.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Fetch a data set from the Hugging Face hub."""
    from fedbraid.data.hub import fetch

    def note(line: str) -> None:
        err.print(line, soft_wrap=True, highlight=False, markup=False)

    fetched = fetch(name, data_dir, revision, note)
    for line in (f"{name} is in {fetched.folder}", f"what it holds: fedbraid data inspect {name}"):
        out.print(line, soft_wrap=True, highlight=False, markup=False)


def refuse_other_pictures(picture: Path | None) -> None:
    if picture and picture.suffix.lower() != ".png":
        raise UserError(f"pictures are PNG files; name it {picture.with_suffix('.png')} instead of {picture}")
