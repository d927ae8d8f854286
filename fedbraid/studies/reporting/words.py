"""How a study's numbers are written, the same in every file."""

from __future__ import annotations

from math import inf, isfinite, isnan

from fedbraid.report.words import NOTHING
from fedbraid.studies.reporting.entries import Entry, Number

MARK = "†"
"""At differences from the paper that are larger than both spreads together."""

MINUS = "\N{MINUS SIGN}"


def number(value: float, digits: int, *, share: bool) -> str:
    """Shares always with the recipe's digits; other numbers with as many as they need, thousands apart."""
    if isnan(value):
        return "diverged"
    if value == inf:
        return "never"
    if share or not value:
        return f"{value:.{digits}f}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}f}" if abs(value) >= 10.0**-digits else f"{value:.{digits + 1}g}"


def spread(value: Number | None, digits: int, *, share: bool) -> str:
    """`68.47 ± 0.25`."""
    if value is None:
        return NOTHING
    mean = number(value.mean, digits, share=share)
    if value.std is None or not isfinite(value.mean):
        return mean
    return f"{mean} ± {number(value.std, digits, share=share)}"


def signed(value: float | None, digits: int, *, share: bool) -> str:
    """`+0.37`."""
    if value is None:
        return NOTHING
    text = number(abs(value), digits, share=share)
    return text if not float(text.replace(",", "")) else f"{'+' if value > 0 else MINUS}{text}"


def ours(entry: Entry, digits: int, seeds: int) -> str:
    """Our number, and how many of the seeds it has where those are not all."""
    if entry.skipped:
        return NOTHING
    if entry.ours is None:
        return "missing"
    text = spread(entry.ours, digits, share=entry.share)
    if entry.reached and len(entry.reached) < len(entry.values):
        text += f" ({len(entry.reached)}/{len(entry.values)} reached)"
    return text if len(entry.values) == seeds else f"{text} (n={len(entry.values)})"


def difference(entry: Entry, digits: int) -> str:
    return signed(entry.difference, digits, share=entry.share) + (f" {MARK}" if entry.beyond else "")
