"""Origins of a table's numbers: how many runs, on which machines, with which versions, in how much time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fedbraid.report.run_settings import flattened
from fedbraid.studies.run_records import Record
from fedbraid.studies.table_results import Results


def runs_of(results: Results) -> list[Record]:
    """The runs behind a table, each once: cells may share them."""
    found = {(run.digest, run.seed): run for cell in results.cells.values() for run in cell.records.values()}
    return list(found.values())


def origins(results: Results) -> list[tuple[str, str]]:
    """Names and values; where runs differ, each value with how many have it."""
    runs = runs_of(results)
    rows = [("seeds", ", ".join(map(str, results.seeds))), ("runs", f"{len(runs)}, each counted once")]
    if runs:
        seconds = sum(run.totals["seconds"] for run in runs)
        rows.append(("time of all rounds together", duration(seconds)))
    described = [flattened({"engine": run.engine}) | flattened(run.environment) for run in runs]
    keys = dict.fromkeys(key for one in described for key in one)
    return rows + [(key, _values(one.get(key, "unknown") for one in described)) for key in keys]


def duration(seconds: float) -> str:
    """Two parts that matter.

    >>> duration(3725)
    '1 h 2 min'
    """
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _values(found: Iterable[str]) -> str:
    counts = Counter(found)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{value} ({count} runs)" if count > 1 else f"{value} (1 run)" for value, count in counts.items())
