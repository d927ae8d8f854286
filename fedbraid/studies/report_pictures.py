"""The pictures beside a table, each with a line that says what to read from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

from fedbraid.report.curves import METRICS, about_bands, shown_heights
from fedbraid.report.pictures import Drawing, Picture
from fedbraid.studies.figure_data import FigureData, figure_data, in_order
from fedbraid.studies.key_labels import key_words
from fedbraid.studies.naming import Place
from fedbraid.studies.recipe import FigureRequest, Recipe
from fedbraid.studies.round_series import is_share, more_is_better
from fedbraid.studies.study_figures import bars, course_words, curves, line, split
from fedbraid.studies.table_entries import TableEntry
from fedbraid.studies.table_results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = {"curves": curves, "line": line, "bars": bars}
COSTS = {"round": "rounds", "bytes": "data moved", "seconds": "time", "aggregations": "aggregations"}
SPLIT = (
    "A row is a client, and a bubble's area its samples of a class: the emptier and the more unequal the rows, the "
    "less alike the clients' data are."
)
WHISKERS = "whiskers are the standard deviation over seeds"


def pictures(recipe: Recipe, results: Results, entries: Mapping[Place, TableEntry]) -> list[Picture]:
    """All pictures that there is something for; courses of the runs if the recipe asks for none."""
    names: Counter[str] = Counter()
    drawn = []
    for wanted in in_order(
        [figure_data(one, recipe, results, entries) for one in recipe.pictures or (FigureRequest(),)]
    ):
        picture = wanted.picture
        for one in _splits(wanted, results) if picture.kind == "split" else _of_numbers(wanted):
            names[picture.kind] += 1
            name = picture.kind if names[picture.kind] == 1 else f"{picture.kind}-{names[picture.kind]}"
            drawn.append(Drawing(name, *one).render())
    return drawn


Asks = tuple[str, str, Callable[..., "Figure"]]
"""A title, what to read from it, and the picture."""


def _of_numbers(wanted: FigureData) -> list[Asks]:
    return [(title(wanted), reading(wanted), partial(DRAWN[wanted.picture.kind], wanted))] if wanted.shown else []


def _splits(wanted: FigureData, results: Results) -> list[Asks]:
    """Return the split of each column's first run: another seed has another."""
    found: list[Asks] = []
    for column in wanted.columns:
        records = [record for row in wanted.rows for record in results.cells[row, column].records.values()]
        run = next((record for record in records if record.label_counts), None)
        if run is not None and run.label_counts:
            sentence = f"{SPLIT} The split is that of seed {run.seed}."
            found.append((f"Who holds what, {column}", sentence, partial(split, run.label_counts, column)))
    return found


def title(wanted: FigureData) -> str:
    picture = wanted.picture
    if picture.kind == "curves":
        where = f", {wanted.columns[0]}" if len(wanted.columns) == 1 else ""
        return f"{_capital(course_words(picture.of).removesuffix(' (%)'))} over {COSTS[picture.x]}{where}"
    over = f" over {picture.x}" if picture.kind == "line" and picture.x != "round" else ""
    return _capital(wanted.label) + over


def reading(wanted: FigureData) -> str:
    picture = wanted.picture
    if picture.kind == "curves":
        panels = [wanted.panel(column) for column in wanted.columns]
        band, cut = about_bands(panels), any(map(shown_heights, panels))
        return _about_curves(picture) + band + (" Lower values of the first rounds are cut off." if cut else "")
    spread = WHISKERS if any(isfinite(wanted.ours(entry.place).whisker) for entry in wanted.shown) else ""
    if picture.kind == "line":
        paper = "hollow marks are the paper's" if wanted.has_paper else ""
        better = f"{_better(wanted, 'higher', 'lower')} line is better, and a flat one does not mind the axis"
        return _sentences(better, spread, paper)
    paper = "the upright mark is the paper's" if wanted.has_paper else ""
    described = all(entry.metric.describes for entry in wanted.shown)
    return _sentences("" if described else f"{_better(wanted, 'longer', 'shorter')} bar is better", spread, paper)


def _sentences(better: str, spread: str, paper: str) -> str:
    """Return the sentences below a picture: which direction is better, what whiskers and marks are."""
    parts = "; ".join(filter(None, [better, spread])), paper
    return " ".join(f"{_capital(part)}." for part in parts if part)


def _about_curves(picture: FigureRequest) -> str:
    if picture.of not in METRICS and not is_share(picture.of):
        return f"How the {key_words(picture.of)} goes on: look for rows that part."
    better = "higher" if more_is_better(picture.of) else "lower"
    fewer = "fewer" if picture.x in ("round", "aggregations") else "less"
    return f"A {better} line is better; one that gets there further left needs {fewer} {COSTS[picture.x]}."


def _better(wanted: FigureData, more: str, less: str) -> str:
    ways = {entry.metric.higher_is_better for entry in wanted.shown}
    if len(ways) > 1:
        return f"The {more} or, as the table's notes say, the {less}"
    return f"A {more if ways.pop() else less}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
