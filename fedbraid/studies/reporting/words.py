"""How a study's numbers are written, the same in every file."""

from __future__ import annotations

from math import floor, inf, isfinite, isnan, log10

from fedbraid.report.words import NOTHING
from fedbraid.studies.reporting.entries import Entry, Number

MARK = "†"
"""At differences from the paper that are larger than both spreads together."""

MINUS = "\N{MINUS SIGN}"
MOST_ZEROS = 6
"""Numbers with more zeros before their first digit are written with a power of ten."""


def pattern(reference: float, digits: int, *, share: bool) -> str:
    """How numbers of this size are written: the recipe's digits, fewer of thousands, more of very small ones.

    Shares always have the recipe's digits. A spread and a difference are written like the number that they are of.
    """
    size = abs(reference)
    if share or not isfinite(size) or not size:
        return f".{digits}f"
    if size >= 1000:
        return ",.0f"
    if size >= 10.0**-digits:
        return f".{digits}f"
    zeros = -floor(log10(size))
    return f".{digits + zeros}f" if zeros <= MOST_ZEROS else f".{digits + 1}g"


def number(value: float, how: str) -> str:
    if isnan(value):
        return "diverged"
    return "never" if value == inf else (MINUS if value < 0 else "") + format(abs(value), how)


def spread(value: Number | None, digits: int, *, share: bool) -> str:
    """`68.47 ± 0.25`."""
    if value is None:
        return NOTHING
    how = pattern(value.mean, digits, share=share)
    if value.std is None or not isfinite(value.mean):
        return number(value.mean, how)
    return f"{number(value.mean, how)} ± {number(value.std, how)}"


def signed(value: float, how: str) -> str:
    """`+0.37`; what is written as nothing has no sign."""
    text = format(abs(value), how)
    return text if not float(text.replace(",", "")) else f"{'+' if value > 0 else MINUS}{text}"


def ours(entry: Entry, digits: int, seeds: int) -> str:
    """Our number, and how many of the seeds it has where those are not all."""
    if entry.skipped:
        return NOTHING
    if entry.ours is None and entry.refused:
        return "cannot be run"
    if entry.ours is None:
        return "missing" if entry.missing else "no value"
    text = spread(entry.ours, digits, share=entry.share)
    if entry.never and entry.ours.mean != inf:
        text += f" ({len(entry.values) - entry.never}/{len(entry.values)} reached)"
    return text if len(entry.values) == seeds else f"{text} (n={len(entry.values)})"


def difference(entry: Entry, digits: int) -> str:
    if entry.difference is None or entry.ours is None:
        return NOTHING
    how = pattern(entry.ours.mean, digits, share=entry.share)
    return signed(entry.difference, how) + (f" {MARK}" if entry.beyond else "")
