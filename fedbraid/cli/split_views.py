"""A partition on the terminal and in files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.columns import Columns
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from fedbraid.config.schema import Config, Named
from fedbraid.data.locate import LAYOUTS
from fedbraid.report.blocks import MARKS, class_style, heat, stacked
from fedbraid.report.partition_table import client_table, in_a_sentence, overall
from fedbraid.report.series import Floats
from fedbraid.report.terminal import to_rich
from fedbraid.report.words import neighbours, shortened
from fedbraid.storage.files import write_bytes

MOST_ROWS = 25
"""Clients drawn on a terminal at most; of more, every second, third … one."""


def show(console: Console, facts: Mapping[str, Any], names: Sequence[str]) -> None:
    console.print(in_a_sentence(facts), highlight=False)
    console.print()
    console.print(to_rich(client_table(facts)))
    console.print()
    for key, value in overall(facts):
        console.print(f"{key}: [bold]{escape(value)}[/]", highlight=False)
    if facts["label_counts"] is not None:
        _drawn(console, np.array(facts["label_counts"], dtype=np.float64), names)


def write(
    facts: Mapping[str, Any],
    names: Sequence[str],
    place: Path | None,
    picture: Path | None,
    html: Path | None,
) -> list[Path]:
    """Write what was asked for: everything into a directory, a picture, a page; the paths of what was written."""
    if not (place or picture or html):
        return []
    from fedbraid.report.html import to_html
    from fedbraid.report.partition_page import partition_drawings, partition_page
    from fedbraid.report.plots import save

    drawings = partition_drawings(facts, names)
    written = []
    if picture:
        save(drawings[0].draw(), picture)
        written.append(picture)
    if not (place or html):
        return written
    pictures = [drawing.render() for drawing in drawings]
    page = to_html(partition_page(facts, pictures)).encode()
    contents = {html: page} if html else {}
    if place:
        contents |= {place / f"{drawn.name}.png": drawn.light for drawn in pictures}
        contents |= {place / "partition.html": page, place / "partition.json": json.dumps(facts, indent=2).encode()}
    for path, content in contents.items():
        write_bytes(path, content)
    return [*written, *contents]


def command(config: Config, clients: int, data_dir: Path | None) -> str:
    """Return the command that makes the partition again."""
    words = ["fedbraid", "data", "partition", config.data.name]
    words += ["--partition", written(config.partition), "--clients", str(clients), "--seed", str(config.seed)]
    for key, value in config.data.options.items():
        words += ["--set", f"data.{key}={json.dumps(value)}"]  # a value in JSON reads the same in TOML
    if config.evaluate.validation:
        words += ["--set", f"evaluate.validation={config.evaluate.validation}"]
    if data_dir and config.data.name in LAYOUTS:
        words += ["--data-dir", str(data_dir)]
    return shlex.join(words)


def written(part: Named) -> str:
    """A name with its options, as --partition takes it."""
    options = ", ".join(f"{key}={value!r}" for key, value in part.options.items())
    return f"{part.name}({options})" if options else part.name


def _drawn(console: Console, counts: Floats, names: Sequence[str]) -> None:
    """Bars of the classes that each client holds, by number and by share."""
    step = -(-len(counts) // MOST_ROWS)
    clients = range(0, len(counts), step)
    margin = len(str(len(counts))) + 1
    room = min(console.width, 100) - margin - 1
    every = "" if step == 1 else f", one in {step} clients"

    lines, size = heat(counts[::step], room)
    columns = "a class" if size == 1 else f"{size} neighbouring classes"
    console.print()
    console.print(
        f"A row is a client, a column {columns}; 9 is the largest count, 8 to 1 are ninths of it, · is none{every}:",
        highlight=False,
    )
    if size == 1:
        wide = lines[0].cell_len // counts.shape[1]
        short = all(len(name) == 1 and name.isascii() and name.isprintable() for name in names)
        marks = names if names and short else [MARKS[k % len(MARKS)] for k in range(counts.shape[1])]
        heads = "".join(f"{mark:<{wide}}" for mark in marks)
        console.print(Text(" " * margin + heads, style="dim"), no_wrap=True, crop=True)
    _rows(console, clients, lines, margin)

    bars, size = stacked(counts[::step], room)
    console.print()
    console.print(f"Of what classes a client's samples are{every}:", highlight=False)
    _rows(console, clients, bars, margin)
    console.print(_key(counts.shape[1], size, names))


def _rows(console: Console, clients: Sequence[int], lines: Sequence[Text], margin: int) -> None:
    for client, line in zip(clients, lines, strict=True):
        console.print(Text(f"{client:>{margin - 1}} ") + line, no_wrap=True, crop=True)


def _key(classes: int, size: int, names: Sequence[str]) -> Columns:
    """Legend of the marks in the bars."""
    said = [shortened(name, 24) for name in names] if names and size == 1 else neighbours(classes, size)
    marks = [Text.assemble((MARKS[k], class_style(k)), f" {words}") for k, words in enumerate(said)]
    return Columns(marks, padding=(0, 2))
