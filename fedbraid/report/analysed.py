"""Analyses in a report: the pictures that lie in `analyses/` beside it, each with what to read from it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedbraid.report.document import figure, pairs
from fedbraid.report.pictures import Picture
from fedbraid.report.words import amount
from fedbraid.storage.files import write_text

FOLDER = "analyses"
"""Where analyses lie, in the directory of a run or of a comparison."""

BEGIN, END = "<!-- analyses -->", "<!-- end of analyses -->"


@dataclass(frozen=True)
class Analysed:
    """An analysis as it lies on disk."""

    picture: Picture
    numbers: Mapping[str, float | None]


def analysed(directory: Path) -> list[Analysed]:
    """The analyses that lie in the directory of a run or of a comparison, by name."""
    return [_read(file) for file in sorted((directory / FOLDER).glob("*.json"))]


def section(directory: Path) -> str:
    """The analyses of a directory as a part of its report, which `refresh` finds again."""
    parts = [
        f"{figure(found.picture)}\n<details><summary>Numbers</summary>\n"
        f"{pairs([(key, amount(value)) for key, value in found.numbers.items()])}\n</details>"
        for found in analysed(directory)
    ]
    return "\n".join((BEGIN, *parts, END))


def refresh(directory: Path) -> bool:
    """Put a directory's analyses into its report; False if there is no report to put them into."""
    report = directory / "report.html"
    if not report.exists():
        return False
    new, count = re.subn(f"{BEGIN}.*{END}", lambda _: section(directory), report.read_text(), flags=re.DOTALL)
    if count:
        write_text(report, new)
    return bool(count)


def _read(file: Path) -> Analysed:
    about = json.loads(file.read_text())
    light, dark = (file.with_name(f"{file.stem}{kind}.png").read_bytes() for kind in ("", "-dark"))
    return Analysed(Picture(about["name"], about["title"], about["reading"], light, dark), about["numbers"])
