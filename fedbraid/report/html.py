"""The report on runs as one HTML file that needs nothing else: no network, no script, no second file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbraid.report.analysed import section
from fedbraid.report.document import document, figure, numbers, pairs, text, verbatim
from fedbraid.report.headline import caveats, headline
from fedbraid.report.pictures import Picture, pictures
from fedbraid.report.run_groups import RunRecord
from fedbraid.report.settings import flattened, setting_rows
from fedbraid.report.table import comparison, to_json, to_markdown
from fedbraid.storage.files import write_bytes

TITLE = "FedBraid report"


def write_report(
    path: Path | str,
    records: Sequence[RunRecord],
    target: float | None = None,
    title: str = TITLE,
    *,
    environment: Mapping[str, Any],
    command: str = "",
) -> None:
    """Write `report.html` for one run or many; `command` is the command line or the config text, shown as it is."""
    more = section(Path(path).parent)
    shown = page(records, pictures(records, target), target, title, environment, command, more)
    write_bytes(Path(path), shown.encode())


def write_comparison(
    directory: Path | str,
    records: Sequence[RunRecord],
    target: float | None = None,
    title: str = TITLE,
    *,
    environment: Mapping[str, Any],
    command: str = "",
    remarks: Sequence[str] = (),
) -> list[Path]:
    """Write the table, the pictures and the report into `directory`; the paths of what was written."""
    table = comparison(records, target, remarks)
    drawn = pictures(records, target)
    more = section(Path(directory))
    contents = {
        "table.md": to_markdown(table).encode(),
        "table.json": (json.dumps(to_json(table), indent=2, allow_nan=False) + "\n").encode(),
        **{f"{picture.name}.png": picture.light for picture in drawn},
        "report.html": page(records, drawn, target, title, environment, command, more, remarks).encode(),
    }
    for name, content in contents.items():
        write_bytes(Path(directory) / name, content)
    return [Path(directory) / name for name in contents]


def page(
    records: Sequence[RunRecord],
    drawn: Sequence[Picture],
    target: float | None,
    title: str,
    environment: Mapping[str, Any],
    command: str,
    analyses: str = "",
    remarks: Sequence[str] = (),
) -> str:
    """The whole document as text; same arguments, same text. `analyses` is that part of it, if there is one."""
    body = [
        f"<h1>{text(title)}</h1>",
        f'<p class="headline">{text(headline(records))}</p>',
        *[f'<p class="caveat">{text(note)}</p>' for note in caveats(records)],
        "<h2>Comparison</h2>",
        numbers(comparison(records, target, remarks)),
        *[figure(picture) for picture in drawn],
        analyses,
        "<h2>Settings</h2>",
        pairs(setting_rows(records)),
        "<h2>Environment</h2>",
        pairs(list(flattened(environment).items())),
    ]
    if command.strip():
        body += ["<h2>Command and configuration</h2>", f"<pre>{verbatim(command)}</pre>"]
    return document(title, "\n".join(body))
