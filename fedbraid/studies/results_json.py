"""A study's results for programs: plain data that strict JSON can hold."""

from __future__ import annotations

from math import isfinite, isnan
from typing import Any

from fedbraid.config.schema import to_dict
from fedbraid.studies.cell_evidence import cost, mean_and_spread, readings, spread_of
from fedbraid.studies.claims import Finding, Interval, Pair
from fedbraid.studies.naming import AT, Place
from fedbraid.studies.run_origins import runs_of
from fedbraid.studies.shared_settings import Sharing, nested
from fedbraid.studies.study_summary import StudySummary
from fedbraid.studies.table_entries import Number, TableEntry, unit_of


def to_json(summary: StudySummary) -> dict[str, Any]:
    """Numbers are in the recipe's unit, by seed; what is not finite is None, and a list says what that means."""
    recipe, results = summary.recipe, summary.results
    return {
        "study": {key: getattr(recipe, key) for key in ("name", "paper", "item", "title", "metric", "unit")},
        "variant": results.variant,
        "seeds": list(results.seeds),
        "warnings": list(summary.warnings),
        "cells": [_cell(entry) | _evidence(summary, entry) for entry in summary.entries.values()],
        "claims": [_claim(finding) for finding in summary.findings],
        "notes": list(summary.notes),
        "readings": list(recipe.readings),
        "missing": list(summary.commands),
        "settings": _settings(summary.settings),
        "runs": dict(summary.origins),
        "cost": cost(runs_of(results)),
    }


def _cell(entry: TableEntry) -> dict[str, Any]:
    return {
        "row": entry.row,
        "column": entry.column,
        "metric": entry.metric.text,
        "reads": entry.metric.label,
        "higher_is_better": entry.metric.higher_is_better,
        "unit": unit_of(entry.metric, entry.scale),
        "values": {str(seed): _finite(value) for seed, value in entry.values.items()},
        "unreached": [seed for seed, value in entry.values.items() if value == entry.metric.never],
        "diverged": [seed for seed, value in entry.values.items() if isnan(value) or seed in entry.lost],
        "not_finite_from": {str(seed): number for seed, number in entry.lost.items()},
        "missing": list(entry.missing),
        "no_value": list(entry.without),
        "skipped": entry.skipped,
        "refused": entry.refused,
        "n": len(entry.values),
        "ours": _number(entry.ours),
        "paper": _number(entry.paper),
        "difference": _finite(entry.difference),
        "beyond_spreads": entry.beyond_spreads,
        "run": entry.digest,
    }


def _evidence(summary: StudySummary, entry: TableEntry) -> dict[str, Any]:
    """Return what stands beside the number: what it rests on, other readings of the same runs, what they cost."""
    cell = summary.results.cells[entry.place]
    config, same = cell.settings, entry.equivalence
    found = readings(entry.metric, cell.records)
    scaled = {name: mean_and_spread([entry.scale * value for value in values]) for name, values in found.items()}
    return {
        "trained": config is not None and not entry.metric.describes,
        "readings": {
            name: rounded and {key: _finite(n) for key, n in rounded.items()} for name, rounded in scaled.items()
        },
        "equivalence": {"margin": entry.margin, "verdict": same} if same else None,
        "tuned": cell.choice,
        "spread_of": spread_of(config) if config else "",
        "data": to_dict(config)["data"] if config else {},
        "cost": cost(cell.records.values()),
    }


def _claim(finding: Finding) -> dict[str, Any]:
    return {
        "says": finding.claim.says,
        "verdict": finding.verdict,
        "so_far": finding.so_far,
        "margin": finding.claim.margin,
        "unit": finding.unit,
        "difference": _interval(finding.overall),
        "agreeing": finding.agreeing,
        "in_paper": {"agreeing": finding.in_paper[0], "pairs": finding.in_paper[1]},
        "pairs": [_pair(pair) for pair in finding.pairs],
        "missing": [{"better": _place(better), "than": _place(than)} for better, than in finding.missing],
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "better": _place(pair.better),
        "than": _place(pair.than),
        "differences": {str(seed): _finite(value) for seed, value in pair.differences.items()},
        "difference": _interval(pair.interval),
        "unreached": pair.unreached,
        "diverged": pair.no_number,
    }


def _interval(found: Interval | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"mean": _finite(found.mean), "low": _finite(found.low), "high": _finite(found.high), "seeds": found.n}


def _number(value: Number | None) -> dict[str, float | None] | None:
    return None if value is None else {"mean": _finite(value.mean), "std": _finite(value.std)}


def _settings(found: Sharing) -> dict[str, Any]:
    return {
        "everywhere": nested(found.everywhere),
        "rows": {name: nested(mine) for name, mine in found.rows.items()},
        "columns": {name: nested(mine) for name, mine in found.columns.items()},
        "cells": {AT.join(place): nested(mine) for place, mine in found.cells.items()},
    }


def _place(place: Place) -> dict[str, str]:
    return {"row": place[0], "column": place[1]}


def _finite(value: float | None) -> float | None:
    """Ten digits: what more there is comes from adding up, not from the runs."""
    return float(f"{value:.10g}") if value is not None and isfinite(value) else None
