"""The report as one HTML file that needs nothing else: no network, no script, no second file."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedbraid.files import write_bytes
from fedbraid.report.headline import caveats, headline
from fedbraid.report.pictures import Picture, pictures
from fedbraid.report.records import RunRecord
from fedbraid.report.settings import flattened, setting_rows
from fedbraid.report.style import DARK, LIGHT
from fedbraid.report.table import BEST_MARK, Cell, Table, comparison, to_json, to_markdown
from fedbraid.report.words import printable

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
    shown = page(records, pictures(records, target), target, title, environment, command)
    write_bytes(Path(path), shown.encode())


def write_comparison(
    directory: Path | str,
    records: Sequence[RunRecord],
    target: float | None = None,
    title: str = TITLE,
    *,
    environment: Mapping[str, Any],
    command: str = "",
) -> list[Path]:
    """Write the table, the pictures and the report into `directory`; the paths of what was written."""
    table = comparison(records, target)
    drawn = pictures(records, target)
    contents = {
        "table.md": to_markdown(table).encode(),
        "table.json": (json.dumps(to_json(table), indent=2, allow_nan=False) + "\n").encode(),
        **{f"{picture.name}.png": picture.light for picture in drawn},
        "report.html": page(records, drawn, target, title, environment, command).encode(),
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
) -> str:
    """The whole document as text; same arguments, same text."""
    body = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="headline">{_text(headline(records))}</p>',
        *[f'<p class="caveat">{_text(note)}</p>' for note in caveats(records)],
        "<h2>Comparison</h2>",
        _comparison_table(comparison(records, target)),
        *[_figure(picture) for picture in drawn],
        "<h2>Settings</h2>",
        _pairs(setting_rows(records)),
        "<h2>Environment</h2>",
        _pairs(list(flattened(environment).items())),
    ]
    if command.strip():
        body += ["<h2>Command and configuration</h2>", f"<pre>{_verbatim(command)}</pre>"]
    return _document(title, "\n".join(body))


def _document(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{_text(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _comparison_table(table: Table) -> str:
    titles = "".join(f'<th scope="col">{_text(column.title)}</th>' for column in table.columns)
    rows = "\n".join(
        f'<tr><th scope="row">{_text(row[0].text)}</th>{"".join(_cell(cell) for cell in row[1:])}</tr>'
        for row in table.rows
    )
    notes = "<br>".join(_text(note) for note in table.notes)
    return (
        f'<div class="wide"><table class="numbers">\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n'
        f'</table></div>\n<p class="note">{notes}</p>'
    )


def _cell(cell: Cell) -> str:
    if not cell.best:
        return f"<td>{_text(cell.text)}</td>"
    return f'<td class="best"><strong>{_text(cell.text)}</strong>{BEST_MARK}</td>'


def _figure(picture: Picture) -> str:
    return f"""<h2>{_text(picture.title)}</h2>
<figure>
<div class="wide"><picture>
<source media="(prefers-color-scheme: dark)" srcset="{_embedded(picture.dark)}">
<img src="{_embedded(picture.light)}" alt="{_text(picture.title)}">
</picture></div>
<figcaption>{_text(picture.reading)}</figcaption>
</figure>"""


def _pairs(rows: Sequence[tuple[str, str]]) -> str:
    if not rows:
        return '<p class="note">nothing recorded</p>'
    lines = "\n".join(f'<tr><th scope="row">{_text(key)}</th><td>{_text(value)}</td></tr>' for key, value in rows)
    return f'<table class="pairs">\n<tbody>\n{lines}\n</tbody>\n</table>'


def _embedded(png: bytes) -> str:
    return f"data:image/png;base64,{b64encode(png).decode()}"


def _text(text: str) -> str:
    return escape(printable(text))


def _verbatim(text: str) -> str:
    """Several lines as they are; only their line breaks and tabs may stay unprintable."""
    return "\n".join("\t".join(_text(part) for part in line.split("\t")) for line in text.strip("\n").splitlines())


_STYLE = f"""
:root {{ color-scheme: light dark; --ink: {LIGHT.ink}; --muted: {LIGHT.muted}; --line: {LIGHT.grid};
  --paper: {LIGHT.paper}; --tint: #f5f7f9; --mark: #9a5b00; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: {DARK.ink}; --muted: {DARK.muted}; --line: {DARK.grid}; --paper: {DARK.paper};
    --tint: #1c2126; --mark: #e6a94d; }}
}}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }}
main {{ max-width: 50rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }}
h1 {{ font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0 1rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.1rem; margin: 2.5rem 0 0.75rem; }}
.headline {{ font-size: 1.15rem; margin: 0 0 0.75rem; overflow-wrap: anywhere; }}
.caveat {{ margin: 0.35rem 0; padding-left: 0.75rem; border-left: 3px solid var(--mark); overflow-wrap: anywhere; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.9rem; width: 100%; }}
th, td {{ padding: 0.35rem 0.6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }}
th {{ font-weight: 500; }}
thead th {{ border-bottom: 2px solid var(--muted); color: var(--muted); vertical-align: bottom; }}
.numbers td, .numbers thead th:not(:first-child) {{ text-align: right; }}
.numbers td {{ white-space: nowrap; font-variant-numeric: tabular-nums; }}
.numbers tbody th {{ min-width: 9rem; overflow-wrap: anywhere; }}
.best {{ background: var(--tint); }}
.pairs th {{ width: 32%; color: var(--muted); font-weight: 400; }}
.pairs th, .pairs td {{ overflow-wrap: anywhere; }}
figure {{ margin: 0; }}
img {{ display: block; width: 100%; min-width: 30rem; height: auto; }}
figcaption, .note {{ color: var(--muted); font-size: 0.875rem; margin-top: 0.5rem; }}
pre {{ background: var(--tint); border: 1px solid var(--line); border-radius: 4px; padding: 0.75rem; overflow-x: auto;
  font-size: 0.85rem; }}
@media print {{ main {{ max-width: none; }} h2 {{ break-after: avoid; }} figure {{ break-inside: avoid; }} }}
"""
