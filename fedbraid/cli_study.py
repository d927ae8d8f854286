"""The commands about studies: the tables and figures of papers, run and put beside the paper's own numbers."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from fedbraid.cli_shared import err, out
from fedbraid.errors import UserError

study_app = typer.Typer(
    help="Tables and figures of papers, as recipes that are run and reported.", no_args_is_help=True
)

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME…]", help="Recipes by name or pattern, or the path of a .toml file.", show_default="all"
    ),
]


@study_app.command("check")
def study_check(name: Names = None) -> None:
    """Whether recipes can be run: every cell's settings, methods and metrics. Nothing is loaded or trained."""
    from fedbraid.studies import recipes
    from fedbraid.studies.cells import cells

    wrong = 0
    for file in recipes.files(name or []):
        try:
            made = cells(recipes.load(file)).values()
        except UserError as error:
            wrong += 1
            err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        else:
            there = [cell for cell in made if not cell.skip]
            out.print(f"{file.stem}: {len(there)} cells", highlight=False, soft_wrap=True, markup=False)
    if wrong:
        raise typer.Exit(1)
