"""Consoles and options that all commands share."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType

from fedbraid.cli.terminal_table import word_table
from fedbraid.errors import UserError
from fedbraid.storage.folders import directory_name, next_numbered, output_path

if TYPE_CHECKING:
    from fedbraid.config.schema import Config

out = Console()
err = Console(stderr=True)


def out_path(value: str | Path) -> Path:
    """Return the value of `--out`; refuse an empty one."""
    return output_path(value, "--out")


def out_option(help: str, show_default: str | bool = True) -> Any:
    """Return the option `--out` of a command."""
    return typer.Option("--out", metavar="PATH", parser=out_path, help=help, show_default=show_default)


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting such as local.epochs=5; may be given many times."),
]
ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="A TOML file.")]
Method = Annotated[str | None, typer.Option("--method", "-m", help="Such as fedprox+disco.")]
Out = Annotated[Path | None, out_option("Directory of the run.", "runs/NAME-1, -2, …")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what --out holds; begin if it holds nothing.")]
DataDir = Annotated[Path | None, typer.Option(help="Where data sets that come as files are.", envvar="FEDBRAID_DATA")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.", show_default="auto")]
Own = Annotated[
    list[str] | None,
    typer.Option("--strand", metavar="FILE.py:CLASS", help="A strand of your own; may be given many times."),
]
Net = Annotated[
    str | None,
    typer.Option("--model", metavar="FILE.py:CLASS", help="A network of your own: a class, or a function."),
]


@contextmanager
def interruptible(where: Path) -> Iterator[None]:
    """Ctrl-C ends a run with a word on how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(
            f"interrupted; --out {shlex.quote(str(where))} --resume goes on with it", soft_wrap=True, markup=False
        )
        raise typer.Exit(130) from None


def refuse_to_guess(place: Path | None, resume: bool) -> None:
    """Refuse `--resume` without `--out`: a new folder would be begun instead."""
    if resume and place is None:
        raise UserError("--resume goes on with what --out holds; say by --out which one")


def begun(place: Path | None, resume: bool, file: Path | None) -> Config | None:
    """Return the configuration of the run to resume, unless a file gives another."""
    from fedbraid.training.run_directory import RunDirectory

    held = RunDirectory(place) if place and resume else None
    return held.config() if held and held.started and file is None else None


def new_run(config: Config) -> Path:
    """Return the folder of a run without --out."""
    return next_numbered(Path("runs"), f"{directory_name(config.method)}-{config.data.name}")


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def entry_table(kind: str, listed: Iterable[dict[str, Any]]) -> RenderableType:
    """Return a table of a list's entries: name, summary, and options as text."""
    rows = [(one["name"], one["summary"], one["text"]) for one in listed]
    return word_table((kind, "what it is", "options"), rows, out.width)
