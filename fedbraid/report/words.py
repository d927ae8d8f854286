"""Values as text, the same in the terminal, in Markdown, in pictures and in HTML."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf, isfinite, isnan, log10

from fedbraid.core.metrics import is_share

NOTHING = "\N{EN DASH}"
MARK, SAME = "†", "≈"
"""At accuracies that are another one than the paper's, and at those that are the same, within a margin."""

MINUS = "\N{MINUS SIGN}"
MOST_ZEROS = 6
"""Numbers with more zeros before their first digit are written with a power of ten."""


def printable(text: str) -> str:
    """Labels come from users: what could steer a terminal, a line or the reading direction becomes a mark."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def shortened(text: str, limit: int) -> str:
    """Printable and at most `limit` long; the middle goes, because methods differ at both ends."""
    text = printable(text)
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[-tail:]}"


def score(value: float | None, metric: str, std: float | None = None) -> str:
    """A share such as accuracy in per cent with two decimals, a loss with four digits; `± std` where one is known."""
    if value is None:
        return NOTHING
    if not isfinite(value):
        return "diverged"
    percent = is_share(metric)
    text = f"{100 * value:.2f}" if percent else f"{value:.4g}"
    if std is None or isnan(std):
        return text
    return f"{text} ± {100 * std:.2f}" if percent else f"{text} ± {std:.2g}"


def amount(value: float | None) -> str:
    """Three digits that matter, thousands apart: 0.0123, 4.57, 1,234."""
    if value is None or not isfinite(value):
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(fraction: float) -> str:
    return f"{100 * fraction:g} %"


def listed(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def byte_unit(largest: float) -> tuple[str, float]:
    """The unit in which `largest` bytes read well, and its size in bytes."""
    for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if largest >= size:
            return name, size
    return "bytes", 1.0


def in_bytes(count: float) -> str:
    """A number of bytes to read: `312 bytes`, `42.7 kB`, `1,234.5 MB` at most, so that runs are easily compared."""
    if count < 1e6:
        unit, size = byte_unit(count)
        return f"{count / size:.1f} {unit}" if size > 1 else f"{count:.0f} {unit}"
    return f"{count / 1e6:,.1f} MB"


def numbered(names: Sequence[str], count: int) -> list[str]:
    """`0 cat`, `1 dog`, …; a number alone where there are no names, or where the name is the number."""
    plain = [str(number) for number in range(count)]
    return [
        number if name == number else f"{number} {name}" for number, name in zip(plain, names or plain, strict=True)
    ]


def neighbours(count: int, size: int) -> list[str]:
    """`0 to 4`, `5 to 9`, …: the numbers below `count`, so many together."""
    starts = range(0, count, size)
    ends = [min(start + size, count) - 1 for start in starts]
    return [f"{start} to {end}" if end > start else str(start) for start, end in zip(starts, ends, strict=True)]


def pattern(reference: float, digits: int, *, share: bool) -> str:
    """Return the format of numbers of this size: so many digits, fewer of thousands, more of very small ones.

    Shares always have as many. A spread and a difference have the format of the number that they belong to.
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


def signed(value: float, how: str) -> str:
    """`+0.37`; what is written as nothing has no sign."""
    text = format(abs(value), how)
    return text if not float(text.replace(",", "")) else f"{'+' if value > 0 else MINUS}{text}"
