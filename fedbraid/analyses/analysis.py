"""The result of an analysis: a tidy table, a few numbers, a figure and how to read it."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedbraid.core.frames import to_frame
from fedbraid.report.style import DARK, LIGHT, Theme
from fedbraid.storage.files import write_bytes, write_text
from fedbraid.storage.spreadsheet_csv import write_csv

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from fedbraid.analyses.recorded import Recorded

Columns = Mapping[str, Sequence[Any]]
"""A tidy table: one row for each observation. Sequences of the same length by the name of their column."""


class Draw(Protocol):
    def __call__(self, *, theme: Theme) -> Figure: ...


@dataclass(frozen=True, eq=False)
class Analysis:
    """One analysis of one run, or of several."""

    name: str
    title: str
    reading: str  # one line: what to read from the picture
    quantities: Mapping[str, float | None]
    columns: Columns
    draw: Draw

    @property
    def numbers(self) -> dict[str, float]:
        """The headline numbers as `name.quantity`; NaN where there is nothing to measure."""
        return {f"{self.name}.{key}": math.nan if v is None else float(v) for key, v in self.quantities.items()}

    @property
    def table(self) -> pandas.DataFrame:
        return to_frame(self.columns)

    @property
    def figure(self) -> Figure:
        return self.draw(theme=LIGHT)

    def write(self, directory: Path) -> list[Path]:
        """Write NAME.csv, NAME.json and NAME.png (on light and on dark paper) into `directory`; their paths."""
        from fedbraid.report.plots import png

        finite = {key: v if math.isfinite(v) else None for key, v in self.numbers.items()}
        about = {"name": self.name, "title": self.title, "reading": self.reading, "numbers": finite}
        images = {f"{self.name}.png": png(self.figure), f"{self.name}-dark.png": png(self.draw(theme=DARK))}
        for name, content in images.items():
            write_bytes(directory / name, content)
        write_text(directory / f"{self.name}.csv", _csv(self.columns))
        write_text(directory / f"{self.name}.json", json.dumps(about, indent=2, allow_nan=False) + "\n")
        return [directory / f"{self.name}.{ending}" for ending in ("csv", "json", "png")]


def labelled(runs: Sequence[Recorded]) -> dict[str, Recorded]:
    """The runs by their method; those of one method by their seed too, or else by their directory."""
    names: Sequence[Callable[[Recorded], str]] = (
        lambda run: run.config.called,
        lambda run: f"{run.config.called} seed {run.config.seed}",
        lambda run: str(run.path),
    )
    found = next(labels for name in names if len(set(labels := [name(run) for run in runs])) == len(runs))
    return dict(zip(found, runs, strict=True))


def _csv(columns: Columns) -> str:
    text = io.StringIO()
    write_csv(text, [columns, *zip(*columns.values(), strict=True)])
    return text.getvalue()
