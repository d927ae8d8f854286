"""Reports as data, read from the results.json of each."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from fedbraid.core.metrics import METRICS as FURTHER
from fedbraid.errors import UserError
from fedbraid.report.words import NOTHING, signed
from fedbraid.studies.cell_evidence import BOTH, WEIGHTS
from fedbraid.studies.cell_metrics import parse
from fedbraid.studies.claims import POINTS
from fedbraid.studies.study_summary import PAPERS

NOT_RUN = "not run"
Told = Mapping[str, Any]
"""A table of results.json."""


@dataclass(frozen=True)
class Reported:
    """A report."""

    folder: str
    study: Mapping[str, str]
    variant: str
    cells: tuple[Told, ...]
    claims: tuple[Told, ...]
    cost: Told
    missing: tuple[str, ...] = ()  # data sets that could not be had

    @property
    def paper(self) -> str:
        return PAPERS.get(self.study["paper"], self.study["paper"])

    @property
    def told(self) -> str:
        return f"{self.paper}, {self.study['item']}: {self.study['title']}" + (
            f" ({self.variant})" if self.variant else ""
        )

    @property
    def settings(self) -> list[str]:
        """The settings that were laid over the recipe's: `key=value`."""
        words = shlex.split(self.variant)
        return [word for before, word in pairwise(words) if before == "--set"]

    @property
    def run(self) -> list[Told]:
        return [cell for cell in self.cells if cell["ours"] and cell["ours"]["mean"] is not None]

    @property
    def trained(self) -> list[Told]:
        """The cells with a number that something was trained for."""
        return [cell for cell in self.run if cell["trained"]]

    @property
    def untrained(self) -> list[Told]:
        """The cells with a number of what was there before training, or that was only calculated."""
        return [cell for cell in self.run if not cell["trained"]]

    @property
    def trainable(self) -> int:
        """The number of cells that need training and have data that can be had."""
        return sum(
            1 for cell in self.cells if cell["trained"] and (cell["n"] or cell["data"]["name"] not in self.missing)
        )

    @property
    def compared(self) -> list[Told]:
        return [cell for cell in self.cells if cell["difference"] is not None]

    @property
    def equivalent(self) -> str:
        """The number of accuracies by their equivalence with the paper's: `same: 3, differs: 1, open: 8`."""
        found = Counter(cell["equivalence"]["verdict"] for cell in self.run if cell["equivalence"])
        return ", ".join(f"{verdict}: {found[verdict]}" for verdict in ("same", "differs", "open") if found[verdict])

    @property
    def difference(self) -> str:
        """The mean difference of each kind of number, as a mean of percents and rounds says nothing."""
        by_kind: dict[str, list[float]] = {}
        for cell in self.compared:
            by_kind.setdefault(kind_of(cell), []).append(cell["difference"])
        told = (f"{signed(fmean(some), ',.2f')} {kind}".strip() for kind, some in by_kind.items())
        return ", ".join(told) or NOTHING

    @property
    def verdicts(self) -> str:
        found = Counter(map(claim_verdict, self.claims))
        return ", ".join(f"{verdict}: {number}" for verdict, number in found.items()) or NOTHING


def kind_of(cell: Told) -> str:
    """Return what a cell's difference is counted in; what is in % and no level of accuracy goes by its own name."""
    is_other = cell["unit"] == POINTS and not is_accuracy(cell)
    return f"in {cell['reads']}" if is_other else str(cell["unit"])


def is_accuracy(cell: Told) -> bool:
    """Tell if it is a level of accuracy in %: less is better of spreads, which are near 0 whatever the level."""
    return cell["unit"] == POINTS and cell["higher_is_better"] and parse(cell["metric"]).of not in FURTHER


def claim_verdict(claim: Told) -> str:
    """Return the verdict on a claim; `so far` where some of its cells were not run."""
    if not claim["pairs"]:
        return NOT_RUN
    return f"{claim['so_far']} so far" if claim["missing"] else str(claim["verdict"])


def differing(report: Reported) -> list[tuple[str, str, float, float]]:
    """Return the cells that were run on fresh draws and on one draw: row, column, and the spread of each."""
    spreads = {(cell["row"], cell["column"]): cell for cell in report.trained if cell["ours"]["std"] is not None}
    found = []
    for (row, column), cell in spreads.items():
        others = [spreads[place] for place in spreads if place[0] == row and place[1].startswith(f"{column}, ")]
        for other in others:
            if (cell["spread_of"], other["spread_of"], cell["metric"]) == (BOTH, WEIGHTS, other["metric"]):
                found.append((row, column, cell["ours"]["std"], other["ours"]["std"]))
    return found


def reports(out: Path, missing: Sequence[str] = ()) -> list[Reported]:
    """Return the reports in a folder, by name. `missing` are data sets that could not be had.

    Raises:
        UserError: a file is no study's results, or those of an earlier version.
    """
    return [_read(file, tuple(missing)) for file in sorted(out.glob("*/results.json"))]


def _read(file: Path, missing: tuple[str, ...]) -> Reported:
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        cells, claims = tuple(told["cells"]), tuple(told["claims"])
        one = Reported(file.parent.name, told["study"], told["variant"], cells, claims, told["cost"], missing)
        for use in ("told", "trainable", "equivalent", "difference", "verdicts"):
            getattr(one, use)  # a key that it lacks is named here, with its file
        return one
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is no study's results ({error}); `fedbraid study report` writes it anew") from error
