"""The command line. Data goes to standard output, progress and notes to standard error."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from fedbraid.cli import listings
from fedbraid.cli.analyze import analyze
from fedbraid.cli.data_commands import data_app
from fedbraid.cli.federation_commands import join, keys, serve
from fedbraid.cli.predict import predict
from fedbraid.cli.privacy_commands import privacy
from fedbraid.cli.report_command import report
from fedbraid.cli.shared_options import (
    ConfigOption,
    DataDir,
    Device,
    Json,
    Method,
    Net,
    Out,
    Own,
    Resume,
    Settings,
    begun,
    entry_table,
    err,
    interruptible,
    new_run,
    out,
    print_json,
    refuse_to_guess,
)
from fedbraid.cli.study_commands import study_app
from fedbraid.cli.terminal_table import word_table
from fedbraid.cli.verify import verify
from fedbraid.errors import UserError
from fedbraid.storage.folders import next_numbered
from fedbraid.version import __version__

app = typer.Typer(
    name="fedbraid",
    help="Federated learning on data that differs from client to client. A method is a braid of strands: "
    "[bold]fedprox+disco(a=0.4)[/bold].",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data_app, name="data")
app.add_typer(study_app, name="study")
app.command()(predict)
app.command()(analyze)
app.command()(report)
app.command()(privacy)
app.command()(verify)
for command in (keys, serve, join):
    app.command()(command)


def version(asked: bool) -> None:
    if asked:
        import torch

        print(f"fedbraid {__version__} (torch {torch.__version__})")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", help="Show the version.", callback=version, is_eager=True)]


@app.callback()
def options(version: Version = False) -> None:
    """Options without a command."""


ConfigFile = Annotated[
    str | None,
    typer.Argument(
        metavar="[METHOD|CONFIG]", help="A method such as fedprox+disco, or a TOML file.", show_default="fedavg"
    ),
]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds of training; as --set rounds=N.")]
Seed = Annotated[int | None, typer.Option(help="The seed of all that is drawn; as --set seed=N.")]
Engine = Annotated[str | None, typer.Option(help="auto, stack, loop, compiled or ray.", show_default="auto")]
Address = Annotated[
    str | None, typer.Option(help="Of a Ray cluster, or auto.", show_default="a Ray of its own on this machine")
]
Gpus = Annotated[
    float | None, typer.Option(help="GPUs of each Ray worker; may be 0.5.", show_default="one, where there are any")
]

OnDivergence = Annotated[
    Literal["fail", "continue"],
    typer.Option(help="A model that is not finite in the end: fail = exit code 1, continue = exit code 0."),
]


@app.command()
def run(
    config: ConfigFile = None,
    method: Method = None,
    rounds: Rounds = None,
    seed: Seed = None,
    settings: Settings = None,
    place: Out = None,
    resume: Resume = False,
    engine: Engine = None,
    address: Address = None,
    gpus_per_worker: Gpus = None,
    device: Device = None,
    data_dir: DataDir = None,
    strand: Own = None,
    model: Net = None,
    on_divergence: OnDivergence = "fail",
    as_json: Json = False,
) -> None:
    """Train one federation. A bare `fedbraid run` trains FedAvg on handwritten digits of ten skewed clients."""
    from fedbraid import api
    from fedbraid.cli import run_views as cli_show
    from fedbraid.cli.user_input import method_or_file, resolved
    from fedbraid.training.user_code import load_network, load_strands

    refuse_to_guess(place, resume)
    network = load_network(model)
    objects: dict[str, Any] = {} if network is None else {"model": network}
    file, method = method_or_file(config, method)
    base = begun(place, resume, file)
    chosen = resolved(
        file,
        settings,
        method=method,
        rounds=rounds,
        seed=seed,
        engine=engine,
        device=device,
        address=address,
        gpus_per_worker=gpus_per_worker,
        model=network,
        base=base,
    )
    if base and chosen.method != base.method:
        raise UserError(
            f"{place} was begun with method = {base.method!r}, not {chosen.method!r}; "
            "resume it with that one, or choose another --out"
        )
    where = place or new_run(chosen)
    with interruptible(where), cli_show.progress(err, chosen.rounds) as on_round:
        done = api.run(
            config=chosen,
            out=where,
            resume=resume,
            own=load_strands(strand),
            data_dir=data_dir,
            on_round=on_round,
            **objects,
        )
    try:
        done.report(where)
    finally:  # a report that cannot be written, as on a full disk, does not take the result with it
        if as_json:
            print_json({"directory": str(where), "summary": done.summary})
        else:
            cli_show.summary(out, done, where)
    if done.summary["diverged"] and on_divergence == "fail":
        raise typer.Exit(1)


Vary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE,…",
        help="A setting with several values: each method is trained with every one, and with every combination if "
        "given many times.",
    ),
]


@app.command()
def compare(
    method: Annotated[list[str], typer.Argument(metavar="METHOD…", help="Methods, such as fedavg fedavg+disco.")],
    config: ConfigOption = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method, with different seeds.")] = 1,
    target: Annotated[float | None, typer.Option(help="Accuracy to reach, such as 0.9.")] = None,
    separate: Annotated[
        bool, typer.Option("--separate", help="One run after the other, where several could share a stack.")
    ] = False,
    rounds: Rounds = None,
    settings: Settings = None,
    vary: Vary = None,
    place: Out = None,
    resume: Resume = False,
    engine: Engine = None,
    address: Address = None,
    gpus_per_worker: Gpus = None,
    device: Device = None,
    data_dir: DataDir = None,
    strand: Own = None,
    model: Net = None,
    as_json: Json = False,
) -> None:
    """Train several methods on the same clients with the same seeds: one table, curves, and a report.

    Runs whose clients do the same, but for seeds and numbers, train together, which is faster: fedavg --seeds 5,
    "fedprox(mu=0.1)" "fedprox(mu=1)", fedavg --vary optimizer.lr=0.1,0.03,0.01, or fedavg fedskip.
    """
    from fedbraid import api
    from fedbraid.cli import run_views as cli_show
    from fedbraid.cli.user_input import resolved, several
    from fedbraid.config.schema import Config
    from fedbraid.training.run_directory import SEEDS, RunDirectory
    from fedbraid.training.user_code import load_network, load_strands

    refuse_to_guess(place, resume)
    network = load_network(model)
    objects: dict[str, Any] = {} if network is None else {"model": network}
    held = next(iter(sorted(place.glob(SEEDS))), None) if place and resume else None
    chosen = resolved(
        config,
        settings,
        engine=engine,
        device=device,
        address=address,
        gpus_per_worker=gpus_per_worker,
        target=target,
        rounds=rounds,
        model=network,
        base=Config(rounds=RunDirectory(held.parent).config().rounds) if held else None,  # longer only if asked for
    )
    where = place or next_numbered(Path("runs"), f"compare-{chosen.data.name}")
    specs = api.planned(
        *method,
        seeds=seeds,
        config=chosen,
        out=where,
        own=load_strands(strand),
        data_dir=data_dir,
        vary=several(vary),
        **objects,
    )
    asked = [spec for _, spec in specs]
    to_run = sum(r.config.rounds for r in asked if r.directory and r.directory.reached < r.config.rounds)
    with interruptible(where), cli_show.progress(err, to_run) as on_round:
        done = api.compared(specs, out=where, resume=resume, on_round=on_round, together=not separate)
    if as_json:
        print_json({"directory": str(where), **cli_show.comparison_in_json(done)})
    else:
        cli_show.comparison(out, done, where)
    if done.failed:
        cli_show.failures(err, done, where)
        raise typer.Exit(1)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method or strand whole.")] = None,
    whole: Annotated[
        bool, typer.Option("--all", help="Show all with papers, hyper-parameters, cost and what they exclude.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The methods and strands there are, by what they change of FedAvg."""
    if name:
        from fedbraid.contract import catalogue

        shown = catalogue.one(name)
        if as_json:
            print_json({key: value for key, value in shown.items() if key != "source"})
        else:
            print_method(shown)
        return
    if not (whole or as_json):
        groups = [(changed, ", ".join(names)) for changed, names in listings.method_groups().items()]
        out.print(word_table(("changes", "methods"), groups, out.width))
        out.print("Join them with +, such as fedprox+disco; a chain that makes no sense is refused with the reason.")
        out.print("Paper, equations, hyper-parameters, cost and source: fedbraid methods disco; of all: --all")
        return
    entries = listings.methods()
    if as_json:
        print_json(entries)
        return
    titles = "method", "paper", "hyper-parameters", "floats down / up", "not with"
    rows = [(e["name"], e["paper"], _by_strand(e["written"]), e["cost"], ", ".join(e["not with"])) for e in entries]
    out.print(word_table(titles, rows, out.width))
    out.print(
        "P is the number of the model's parameters. Join strands with +, such as fedprox+disco: all but those under "
        "'not with' go together."
    )
    out.print("One whole, with its source: fedbraid methods disco")


def _by_strand(written: str) -> str:
    """A chain with a line for each strand: as one word, two would be wider than a narrow terminal has room for."""
    return written.replace(")+", ")+\n")


@app.command()
def models(as_json: Json = False) -> None:
    """The networks there are."""
    listed = listings.models()
    if as_json:
        print_json(listings.without_text(listed))
    else:
        out.print(entry_table("model", listed))


@app.command()
def check(
    strand: Annotated[str, typer.Argument(metavar="FILE.py:CLASS", help="A strand, or the name of a method.")],
    as_json: Json = False,
) -> None:
    """Test a strand against the contract that every strand keeps."""
    from fedbraid.contract.checks import check_strand
    from fedbraid.strands.parser import parse
    from fedbraid.training.user_code import load_strand

    own = [load_strand(strand)] if ":" in strand or strand.endswith(".py") else []
    subject = parse(own[0].name if own else strand, own=own)
    results = check_strand(subject, raises=False)
    failed = [r for r in results if r.verdict == "failed"]
    if as_json:
        print_json([vars(r) for r in results])
    else:
        details: set[str] = set()
        for r in results:
            colour = {"passed": "green", "failed": "red"}.get(r.verdict, "yellow")
            detail = "the same" if r.verdict == "failed" and r.detail in details else r.detail
            details.add(r.detail)
            out.print(
                f"[{colour}]{r.verdict:>14}[/]  {escape(r.law)}" + (f": {escape(detail)}" if detail else ""),
                soft_wrap=True,
            )
    if failed:
        raise typer.Exit(1)


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="A minute or two instead of several.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="WORK", help="One workload; may be given many times.")
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure speed here, in one interleaved run with medians.

    Beside FedBraid's engines run the usual loop (a deep copy, a DataLoader and an optimiser for each client) and a
    single model that trains as many steps on batches that lie ready: the limit of any loop.
    """
    from fedbraid import benchmark
    from fedbraid.engines.device import device_of
    from fedbraid.errors import unknown

    where = str(device_of(device or "cpu"))
    works = {work.name: work for work in benchmark.works(where, quick=quick)}
    for name in only or ():
        if name not in works:
            raise unknown("workload", name, works)
    rows = benchmark.measure(
        [works[name] for name in only or works],
        device=where,
        repeats=5 if quick else 9,
        note=lambda text: err.print(text, highlight=False),
        evaluated=not quick,
    )
    if as_json:
        print_json([vars(row) for row in rows])
        return
    columns = "work", "engine", "samples/s", "±", "× usual loop", "× single model", "TFLOP/s", "of matmul"
    table = Table(*columns, box=None, header_style="bold")
    for row in rows:
        table.add_row(
            row.work,
            row.engine + (" (auto)" if row.chosen else ""),
            f"{row.samples_per_s:,.0f}",
            f"{row.spread:.0%}",
            f"{row.vs_usual:.2f}",
            f"{row.vs_limit:.2f}",
            f"{row.flop_per_s / 1e12:.3g}",
            f"{row.of_matmul:.1%}",
        )
    out.print(table)


def print_method(shown: dict[str, Any]) -> None:
    from rich.syntax import Syntax

    for key in ("name", "paper", "chain", "hyper-parameters", "cost", "averages", "needs", "not with"):
        if shown.get(key):
            out.print(f"[bold]{key:>16}[/]  {escape(str(shown[key]))}", highlight=False, soft_wrap=True)
    for source in shown["source"]:
        out.print()
        if out.is_terminal:
            out.print(Syntax(source, "python", background_color="default", word_wrap=True))
        else:  # whole lines, whatever width there is
            out.print(source, highlight=False, soft_wrap=True, markup=False)


def main() -> None:
    """The entry point: a user's mistake is one line and exit code 2, never a traceback."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("fedbraid").setLevel(logging.INFO)
    try:
        app()
    except Exception as error:
        from fedbraid.training.failures import sentence

        message = sentence(error)
        if message is None:
            raise
        err.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
