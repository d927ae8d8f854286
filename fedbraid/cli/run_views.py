"""Progress while runs go on, and their results on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedbraid.config.schema import Config
from fedbraid.core.metrics import METRICS, is_share
from fedbraid.privacy import budget as privacy
from fedbraid.report import run_table
from fedbraid.report.headline import caveats, headline
from fedbraid.report.run_groups import further_metrics, metric_of, validated
from fedbraid.report.tables import to_json
from fedbraid.report.terminal import to_rich
from fedbraid.report.words import in_bytes
from fedbraid.training.results import Comparison, Run
from fedbraid.training.run_writer import OnRound

MOST_NAMED = 20
"""Clients whose scores are shown one by one."""

Name = Callable[[Config], str]
"""What a run is called beside its seed."""

Last = dict[str, tuple[dict[str, Any], Config]]
"""The last line of each run, and its configuration, which tells runs apart."""


def name_of(config: Config) -> str:
    return config.called


@contextmanager
def progress(console: Console, rounds: int, name: Name = name_of) -> Iterator[OnRound]:
    """A callback for every round of runs that have so many in all: a live bar on a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield _lines(console, name)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("round {task.fields[round]}  {task.fields[score]}  {task.fields[speed]} samples/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, round="–", score="", speed="–")
        last: Last = {}
        score = ""

        def on_round(record: dict[str, Any], config: Config) -> None:
            nonlocal score
            me = repr(config)
            last[me] = record, config
            now = going(last) or {me: last[me]}
            score = said_scores([line for line, _ in now.values()]) or score
            bar.update(
                task,
                completed=sum(line["round"] for line, _ in last.values()),
                total=rounds,
                description=said(now, name),
                round=f"{record['round']}/{config.rounds}",
                score=score,
                speed=_speed([line for line, _ in now.values()]),
            )

        yield on_round


def _lines(console: Console, name: Name) -> OnRound:
    """At most one line in two seconds for the runs that go on together, and each run's last one always."""
    shown = -2.0
    last: Last = {}

    def say(runs: Last, rest: str) -> None:
        lines = [line for line, _ in runs.values()]
        least, config = min(line["round"] for line in lines), next(iter(runs.values()))[1]
        console.print(
            f"{said(runs, name)}: round {least}/{config.rounds}  {said_scores(lines)}  {_speed(lines)} samples/s{rest}",
            highlight=False,
            soft_wrap=True,
            markup=False,
        )

    def on_round(record: dict[str, Any], config: Config) -> None:
        nonlocal shown
        me = repr(config)
        new, last[me] = me not in last, (record, config)
        if record["round"] == config.rounds:
            say({me: last[me]}, "")
        elif monotonic() - shown >= 2:
            shown, now = monotonic(), going(last)
            left = sum((c.rounds - line["round"]) * line["seconds"] for line, c in now.values())
            rest = f"  about {left:.0f} s left in {'this run' if len(now) == 1 else 'these runs'}"
            say(now, "" if new else rest)  # who else goes together with a new run is not known yet

    return on_round


def going(last: Last) -> Last:
    """The runs that have rounds before them. Runs that do not go together end before the next begin."""
    return {run: (line, config) for run, (line, config) in last.items() if line["round"] < config.rounds}


def said(runs: Last, name: Name) -> str:
    return said_runs([(name(config), config.seed) for _, config in runs.values()])


def said_runs(runs: list[tuple[str, int]]) -> str:
    """Such as `fedavg seeds 0 to 4`."""
    methods, seeds = (list(dict.fromkeys(part)) for part in zip(*runs, strict=True))
    if len(seeds) == 1:
        return f"{', '.join(methods)} seed {seeds[0]}"
    seeds = sorted(seeds)
    in_a_row = seeds == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"{', '.join(methods)} seeds " + (f"{seeds[0]} to {seeds[-1]}" if in_a_row else ", ".join(map(str, seeds)))


def said_scores(lines: list[dict[str, Any]]) -> str:
    """The score of one run, or the mean of several; on validation samples too, where there are any."""
    metric = metric_of(lines)
    if metric is None:
        return ""
    mean = "mean " if len(lines) > 1 else ""
    said = f"{mean}{metric} {_said_score(lines, metric)}"
    held_out = validated(lines, metric)
    return f"{said}, on validation {_said_score(lines, held_out)}" if held_out else said


def _said_score(lines: list[dict[str, Any]], key: str) -> str:
    value = fmean(line[key] for line in lines if line.get(key) is not None)
    return f"{100 * value:.2f} %" if is_share(key) else f"{value:.4f}"


def _speed(lines: list[dict[str, Any]]) -> str:
    seconds = sum(line["seconds"] for line in lines)
    return f"{sum(line['backward_samples'] for line in lines) / max(seconds, 1e-9):,.0f}"


def _said_clients(each: Mapping[str | int, float | None], score: Callable[[float | None], str]) -> str:
    """A line for each of a few clients that have names; of others the mean and the extremes."""
    if len(each) <= MOST_NAMED and all(isinstance(name, str) for name in each):
        return "\n".join(escape(f"{name}  {score(value)}") for name, value in each.items())
    some = [value for value in each.values() if value is not None]
    return f"mean {score(fmean(some))}, from {score(min(some))} to {score(max(some))}" if some else score(None)


def summary(console: Console, run: Run, where: Path) -> None:
    """The numbers of a finished run."""
    s = run.summary

    def score(value: float | None, share: bool = s["metric"] == "accuracy") -> str:
        if value is None or isnan(value):
            return "–"
        return f"{100 * value:.2f} %" if share else f"{value:.4f}"

    table = Table(show_header=False, box=None)
    table.add_row("method", escape(run.config.method))
    table.add_row(f"last {s['metric']}", score(s["last"]))
    table.add_row("best", f"{score(s['best'])} in round {s['best_round']}")
    if "chosen" in s:
        there = f"in round {s['chosen_round']}, with {score(s['chosen_validation'])} on validation"
        table.add_row("chosen by validation", f"{score(s['chosen'])} {there}")
    table.add_row("mean of last 5, last 10", f"{score(s['mean_last5'])}, {score(s['mean_last10'])}")
    if s["target"]:
        where_reached = " on validation" if "chosen" in s else ""
        table.add_row(f"rounds to {score(s['target'])}{where_reached}", str(s["rounds_to_target"] or "not reached"))
    if each := run.client_scores:
        table.add_row(f"last {s['metric']} of clients", _said_clients(each, score))
    for name in further_metrics([s]):
        table.add_row(f"last {METRICS[name].title}", score(s[name], METRICS[name].is_share))
    table.add_row("moved", f"{in_bytes(s['bytes_down'] + s['bytes_up'])} in {s['rounds']} rounds")
    table.add_row("time", f"{s['seconds']:.1f} s")
    for strand, p in s.get("privacy", {}).items():
        epsilon = f"epsilon {privacy.epsilon_text(p['epsilon'])} at delta {p['delta']:g} ({p['releases']} releases)"
        table.add_row(f"privacy by {strand}", f"of a {p['of']}: {epsilon}")
    console.print(table)
    if s["diverged"]:
        console.print(
            f"[bold red]diverged[/]: from round {s['diverged']} on the model is not finite; its scores mean nothing"
        )
    _report(console, where)


def comparison(console: Console, done: Comparison, where: Path) -> None:
    """The methods side by side, and what to make of them."""
    console.print(to_rich(run_table.comparison(done.records, done.target, done.remarks)))
    for line in (headline(done.records), *caveats(done.records)):
        console.print(escape(line))
    _report(console, where)


def comparison_in_json(done: Comparison) -> dict[str, Any]:
    failed = [{"method": f.label, "seed": f.seed, "reason": f.reason} for f in done.failed]
    return {**to_json(run_table.comparison(done.records, done.target, done.remarks)), "failed": failed}


def failures(console: Console, done: Comparison, where: Path) -> None:
    """Print the failed runs of a comparison, and how to try them again."""
    for remark in done.remarks:
        console.print(f"[bold red]error:[/] {escape(remark)}", highlight=False, soft_wrap=True)
    console.print(
        f"the others are kept: --out {where} --resume tries again what failed, and trains nothing twice",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


def _report(console: Console, where: Path) -> None:
    console.print(f"report: {where / 'report.html'}", soft_wrap=True, highlight=False, markup=False)
