"""What the HTML pages are made of: one file each that needs nothing else, no network, no script, light and dark."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from fedbraid.report.pictures import Picture
from fedbraid.report.style import DARK, LIGHT
from fedbraid.report.table import BEST_MARK, Cell, Table
from fedbraid.report.words import printable


def document(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{text(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def numbers(table: Table) -> str:
    """A table whose first column names the rows, with its notes below."""
    titles = "".join(f'<th scope="col">{text(column.title)}</th>' for column in table.columns)
    rows = "\n".join(
        f'<tr><th scope="row">{text(row[0].text)}</th>{"".join(_cell(cell) for cell in row[1:])}</tr>'
        for row in table.rows
    )
    notes = "<br>".join(text(note) for note in table.notes)
    return (
        f'<div class="wide"><table class="numbers">\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n'
        f'</table></div>\n<p class="note">{notes}</p>'
    )


def _cell(cell: Cell) -> str:
    if not cell.best:
        return f"<td>{text(cell.text)}</td>"
    return f'<td class="best"><strong>{text(cell.text)}</strong>{BEST_MARK}</td>'


def figure(picture: Picture) -> str:
    """A picture under its title: the light or the dark one, as the reader's screen prefers."""
    return f"""<h2>{text(picture.title)}</h2>
<figure>
<div class="wide"><picture>
<source media="(prefers-color-scheme: dark)" srcset="{_embedded(picture.dark)}">
<img src="{_embedded(picture.light)}" alt="{text(picture.title)}">
</picture></div>
<figcaption>{text(picture.reading)}</figcaption>
</figure>"""


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values."""
    if not rows:
        return '<p class="note">nothing recorded</p>'
    lines = "\n".join(f'<tr><th scope="row">{text(key)}</th><td>{text(value)}</td></tr>' for key, value in rows)
    return f'<table class="pairs">\n<tbody>\n{lines}\n</tbody>\n</table>'


def _embedded(png: bytes) -> str:
    return f"data:image/png;base64,{b64encode(png).decode()}"


def text(raw: str) -> str:
    """Shown as it is, never obeyed."""
    return escape(printable(raw))


def verbatim(raw: str) -> str:
    """Several lines as they are; only their line breaks and tabs may stay unprintable."""
    return "\n".join("\t".join(text(part) for part in line.split("\t")) for line in raw.strip("\n").splitlines())


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
.loud {{ margin: 0.5rem 0; padding: 0.6rem 0.75rem; border: 2px solid var(--mark); background: var(--tint);
  font-weight: 600; overflow-wrap: anywhere; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.9rem; width: 100%; }}
th, td {{ padding: 0.35rem 0.6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }}
th {{ font-weight: 500; }}
thead th {{ border-bottom: 2px solid var(--muted); color: var(--muted); vertical-align: bottom; }}
.numbers td, .numbers thead th:not(:first-child) {{ text-align: right; }}
.numbers td {{ white-space: nowrap; font-variant-numeric: tabular-nums; }}
.numbers tbody th {{ min-width: 10rem; overflow-wrap: anywhere; position: sticky; left: 0; background: var(--paper); }}
.numbers .far {{ color: var(--mark); font-weight: 600; }}
.best {{ background: var(--tint); }}
.pairs th {{ width: 32%; color: var(--muted); font-weight: 400; }}
.pairs th, .pairs td {{ overflow-wrap: anywhere; }}
figure {{ margin: 0; }}
img {{ display: block; width: 100%; min-width: 30rem; height: auto; }}
figcaption, .note {{ color: var(--muted); font-size: 0.875rem; margin-top: 0.5rem; }}
ul {{ padding-left: 1.2rem; }}
li {{ margin: 0.5rem 0; overflow-wrap: anywhere; }}
summary {{ color: var(--muted); font-size: 0.875rem; cursor: pointer; }}
pre {{ background: var(--tint); border: 1px solid var(--line); border-radius: 4px; padding: 0.75rem; overflow-x: auto;
  font-size: 0.85rem; }}
@media print {{ main {{ max-width: none; }} h2 {{ break-after: avoid; }} figure {{ break-inside: avoid; }} }}
"""
