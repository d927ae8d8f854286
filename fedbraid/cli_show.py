"""What a user sees while a run goes on and when it is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedbraid.config import Config
from fedbraid.execute import OnRound
from fedbraid.results import Run


@contextmanager
def progress(console: Console, order: list[tuple[str, int]]) -> Iterator[OnRound]:
    """A callback for every round of runs (method, seed) in `order`: a live bar on a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("round {task.fields[round]}  {task.fields[score]}  {task.fields[speed]} samples/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, round="–", score="", speed="–")
        score = ""

        def on_round(record: dict[str, Any], config: Config) -> None:
            nonlocal score
            score = said_score(record) or score
            before = order.index((config.method, config.seed)) if (config.method, config.seed) in order else 0
            bar.update(
                task,
                completed=before * config.rounds + record["round"],
                total=len(order) * config.rounds,
                description=f"{config.method} seed {config.seed}",
                round=f"{record['round']}/{config.rounds}",
                score=score,
                speed=_speed(record),
            )

        yield on_round


def _lines(console: Console) -> OnRound:
    """At most one line in two seconds for each run, and the last one always."""
    shown = -2.0

    def on_round(record: dict[str, Any], config: Config) -> None:
        nonlocal shown
        last = record["round"] == config.rounds
        if last or monotonic() - shown >= 2:
            shown = monotonic()
            left = (config.rounds - record["round"]) * record["seconds"]
            console.print(
                f"{config.method} seed {config.seed}: round {record['round']}/{config.rounds}  {said_score(record)}  "
                f"{_speed(record)} samples/s" + ("" if last else f"  about {left:.0f} s left in this run"),
                highlight=False,
                soft_wrap=True,
                markup=False,
            )

    return on_round


def said_score(record: dict[str, Any]) -> str:
    if record["accuracy"] is not None:
        return f"accuracy {100 * record['accuracy']:.2f} %"
    return f"loss {record['loss']:.4f}" if record["loss"] is not None else ""


def _speed(record: dict[str, Any]) -> str:
    return f"{record['backward_samples'] / max(record['seconds'], 1e-9):,.0f}"


def summary(console: Console, run: Run, where: Path) -> None:
    """The numbers of a finished run."""
    s = run.summary
    percent = s["metric"] == "accuracy"

    def score(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.2f} %" if percent else f"{value:.4f}"

    table = Table(show_header=False, box=None)
    table.add_row("method", escape(run.config.method))
    table.add_row(f"last {s['metric']}", score(s["last"]))
    table.add_row("best", f"{score(s['best'])} in round {s['best_round']}")
    table.add_row("mean of last 5, last 10", f"{score(s['mean_last5'])}, {score(s['mean_last10'])}")
    if s["target"]:
        table.add_row(f"rounds to {score(s['target'])}", str(s["rounds_to_target"] or "not reached"))
    table.add_row("moved", f"{(s['bytes_down'] + s['bytes_up']) / 1e6:,.1f} MB in {s['rounds']} rounds")
    table.add_row("time", f"{s['seconds']:.1f} s")
    for strand, p in s.get("privacy", {}).items():
        epsilon = "not computed" if p["epsilon"] is None else f"{p['epsilon']:.2f}"
        table.add_row(f"privacy of {strand}", f"epsilon {epsilon} at delta {p['delta']:g} ({p['releases']} releases)")
    console.print(table)
    diverged = next((line["round"] for line in run.rounds if not line["finite"]), None)
    if diverged:
        console.print(
            f"[bold red]diverged[/]: from round {diverged} on the model is not finite; its scores mean nothing"
        )
    console.print(f"report: {where / 'report.html'}", soft_wrap=True, highlight=False, markup=False)
