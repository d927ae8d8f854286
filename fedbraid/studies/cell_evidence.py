"""Evidence beside a cell's number: other readings of the same runs, equivalence with the paper's number, what the
spread is of, and what the runs cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from statistics import fmean, stdev
from typing import Any, Literal, get_args

from fedbraid.config.schema import Config
from fedbraid.studies.cell_metrics import CellMetric, parse
from fedbraid.studies.claims import interval
from fedbraid.studies.round_series import is_score
from fedbraid.studies.run_records import Record

READINGS = "best", "last", "mean_last(n=10)"
"""Ways to read one number from the course of a score. Which one a paper means is often not said."""

WEIGHTS, BOTH = "initial weights", "splits and initial weights"
"""What the spread over seeds is of."""

Equivalence = Literal["same", "differs", "open"]
EQUIVALENCES: tuple[Equivalence, ...] = get_args(Equivalence)


def readings(metric: CellMetric, records: Mapping[int, Record]) -> dict[str, list[float]]:
    """Return each of `READINGS` of the runs, one value a seed; nothing where the metric does not read a score.

    Runs that have no such number are left out, diverged ones included.
    """
    if metric.of not in {key for record in records.values() for key in record.series} or not is_score(metric.of):
        return {}
    found = {}
    for reading in READINGS:
        name, _, options = reading.partition("(")
        read = parse(f"{name}({', '.join(filter(None, [options.rstrip(')'), f'of={metric.of!r}']))})").read
        values = [value for record in records.values() if (value := read(record)) is not None and isfinite(value)]
        found[reading] = values
    return found


def equivalence(values: Sequence[float], paper: float, margin: float) -> Equivalence:
    """Tell if our mean is the paper's number within a margin that was stated before the runs.

    The number counts as the same if the 95 % Student-t interval of our mean lies within the margin around the paper's,
    and as another one if the interval lies outside of it. Anything else is open: also one seed, which has no interval.
    (As a test of equivalence that is two one-sided tests at 2.5 % each. The paper's number is taken as it stands: its
    own spread, where it is told, is seldom said to be of what.)
    """
    found = interval(values) if all(map(isfinite, values)) else None
    if found is None or not found.known:
        return "open"
    low, high = found.low - paper, found.high - paper
    if -margin <= low and high <= margin:
        return "same"
    return "differs" if low > margin or high < -margin else "open"


def spread_of(config: Config) -> str:
    """Say what differs from seed to seed: the split and the initial weights, or the initial weights alone."""
    part = config.partition
    whole = part.name == "natural" and (not part.clients or part.options.get("choose") == "largest")
    drawn = (part.options | config.data.options).get("draws", "own") != "own"
    fixed = whole or drawn or part.name == "assignment"
    return WEIGHTS if fixed else BOTH


def mean_and_spread(values: Sequence[float]) -> dict[str, float | None] | None:
    """Return the mean and the sample standard deviation to ten digits, or None of nothing."""
    if not values:
        return None
    return {"mean": float(f"{fmean(values):.10g}"), "std": float(f"{stdev(values):.10g}") if len(values) > 1 else None}


def cost(records: Iterable[Record]) -> dict[str, Any]:
    """Return the number of runs, and the seconds of all their rounds by processor: a GPU's name, or `CPU`.

    Runs that share a stack share its seconds. A processor that several processes used at once is counted for each.
    """
    runs = {(record.digest, record.seed): record for record in records}
    seconds: dict[str, float] = defaultdict(float)
    for record in runs.values():
        on_gpu = str(record.engine.get("device", "")).startswith("cuda")
        seconds[record.environment.get("gpu", "GPU") if on_gpu else "CPU"] += record.totals["seconds"]
    return {"runs": len(runs), "seconds": {name: round(spent, 1) for name, spent in seconds.items()}}
