"""The analyses in a report: the pictures in `analyses/` beside it, each with what to read from it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fedbraid.report.html import blocks_to_html
from fedbraid.report.pages import Analyses, Block, Details, Pairs, Paragraph
from fedbraid.report.pictures import Picture
from fedbraid.report.words import amount
from fedbraid.storage.files import write_text

FOLDER = "analyses"
"""The folder of analyses, in the directory of a run or of a comparison."""

ADD = "None yet. `fedbraid analyze` adds them to this page."


def analyses(directory: Path) -> Analyses:
    """Return the analyses in the directory of a run or of a comparison, by name."""
    found = [block for file in sorted((directory / FOLDER).glob("*.json")) for block in _read(file)]
    return Analyses(tuple(found) or (Paragraph(ADD, "note"),))


def refresh(directory: Path) -> bool:
    """Put a directory's analyses into its report; return False if there is no report to put them into."""
    report = directory / "report.html"
    if not report.exists():
        return False
    new = blocks_to_html([analyses(directory)])
    marked = "<!-- analyses -->.*<!-- end of analyses -->"
    text, count = re.subn(marked, lambda _: new.strip(), report.read_text(), flags=re.DOTALL)
    if count:
        write_text(report, text)
    return bool(count)


def _read(file: Path) -> list[Block]:
    about = json.loads(file.read_text())
    light, dark = (file.with_name(f"{file.stem}{kind}.png").read_bytes() for kind in ("", "-dark"))
    numbers = Pairs([(key, amount(value)) for key, value in about["numbers"].items()])
    picture = Picture(about["name"], about["title"], about["reading"], light, dark)
    return [Paragraph(about["title"], "subheading"), picture, Details("Numbers", (numbers,))]
