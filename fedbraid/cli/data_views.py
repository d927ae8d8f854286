"""A data set on the terminal: counts, classes and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedbraid.data.dataset import Dataset
from fedbraid.data.dataset_facts import class_name, is_image, some_classes, some_of_class
from fedbraid.report.blocks import bar, half_blocks, smaller
from fedbraid.report.sheets import shades
from fedbraid.report.style import LIGHT
from fedbraid.report.words import amount, printable, shortened

MOST_CLASSES, ENDS = 30, 10
"""Of more classes than this, so many of the most frequent and of the rarest are shown."""
MOST_FEATURES = 12
PICTURES, SIDE = 10, 16
"""Images shown at most, and pixels a side."""


def facts(console: Console, values: Mapping[str, Any]) -> None:
    """Counts and kinds, then what is particular to classes, numbers or texts."""
    shape = "×".join(map(str, values["sample"]))
    lines = {
        "name": f"{values['name']}, a {values['task']}",
        "found in": values["source"],
        "samples": f"{values['train']:,} for training, {values['test']:,} for testing",
        "each": f"shape {shape}, {values['type']}",
    }
    if "users" in values:
        users, sizes = values["users"], values["users"]["samples"]
        tested = "" if users["test"] is None else f"; {users['test']:,} users have test samples"
        lines["users"] = f"{users['train']:,} with {_span(sizes)} training samples, median {sizes['median']:,g}{tested}"
    if "vocabulary" in values:
        lines["vocabulary"] = f"{values['vocabulary']:,} tokens"
    if "label" in values:
        for part, quartiles in values["label"].items():
            lines[f"{part} label"] = "min {}, quartiles {}, {}, {}, max {}".format(*map(amount, quartiles))
    for key, value in lines.items():
        console.print(f"[bold]{key:>12}[/]  {escape(printable(value))}", highlight=False, soft_wrap=True)
    if "per_class" in values:
        console.print()
        _classes(console, values["per_class"])
    if "features" in values:
        console.print()
        _features(console, values["features"])
    for example in values.get("examples", ()):
        console.print()
        console.print(Text(_visible(example["label"]), style="bold"))
        console.print(Text(printable(example["text"].replace("\n", "↵"))))


def images(console: Console, dataset: Dataset) -> None:
    """A sample of each of a few classes, where the terminal has colours to show them."""
    if not is_image(dataset) or dataset.task != "classification" or console.color_system is None:
        return
    labels = some_classes(dataset, PICTURES).tolist()
    rows = [some_of_class(dataset, label, 1)[0] for label in labels]
    drawn = [half_blocks(smaller(image, SIDE)) for image in shades(dataset.train.x[rows])]
    width = drawn[0][0].cell_len + 1
    across = max(1, console.width // width)
    for start in range(0, len(drawn), across):
        console.print()
        for line in zip(*drawn[start : start + across], strict=True):
            console.print(Text(" ").join(line), no_wrap=True, crop=True)
        names = [shortened(class_name(dataset, label), width - 1) for label in labels[start : start + across]]
        console.print(Text(" ".join(f"{name:<{width - 1}}" for name in names)), no_wrap=True, crop=True)


def _visible(name: str) -> str:
    """A class's name; in quotes where it is a space or nothing."""
    return shortened(name, 24) if name.strip() else repr(name)


def _span(sizes: Mapping[str, int]) -> str:
    return f"{sizes['min']:,} to {sizes['max']:,}"


def _classes(console: Console, per_class: Sequence[Mapping[str, Any]]) -> None:
    named = any(row["name"] != str(row["class"]) for row in per_class)
    largest = max(row["train"] for row in per_class)
    shown = list(per_class)
    if len(shown) > MOST_CLASSES:
        order = sorted(shown, key=lambda row: -row["train"])
        shown = order[:ENDS] + order[-ENDS:]
        console.print(f"of {len(per_class):,} classes the {ENDS} most frequent and the {ENDS} rarest:", highlight=False)
    table = Table("class", *(["name"] if named else []), box=None, header_style="bold")
    table.add_column("training", justify="right")
    table.add_column("")
    table.add_column("test", justify="right")
    for row in shown:
        name = [Text(_visible(row["name"]))] if named else []
        length = Text(bar(row["train"], largest, 24), style=LIGHT.palette[5])
        table.add_row(str(row["class"]), *name, f"{row['train']:,}", length, f"{row['test']:,}")
    console.print(table)


def _features(console: Console, ranges: Mapping[str, Sequence[float]]) -> None:
    pairs = list(zip(ranges["min"], ranges["max"], strict=True))
    if len(pairs) > MOST_FEATURES:
        console.print(f"the first {MOST_FEATURES} of {len(pairs):,} features (--json has all):", highlight=False)
    table = Table("feature", "lowest", "highest", box=None, header_style="bold")
    for place, (low, high) in enumerate(pairs[:MOST_FEATURES]):
        table.add_row(str(place), amount(low), amount(high))
    console.print(table)
