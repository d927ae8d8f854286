"""All reports of a folder on one page, the index of the pages of verdicts (`studies.verdict_pages`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fedbraid.errors import UserError
from fedbraid.report import panels as panels_of
from fedbraid.report.html import to_html
from fedbraid.report.markdown import page_markdown
from fedbraid.report.pages import Page, Paragraph, Section
from fedbraid.report.pictures import Drawing, Picture
from fedbraid.report.style import LIGHT, Theme, stroke
from fedbraid.report.tables import TableCell, TableColumn, TableData
from fedbraid.report.words import NOTHING, listed
from fedbraid.storage.files import write_bytes
from fedbraid.studies.recipe_files import files, read
from fedbraid.studies.reported import Reported, is_accuracy, reports
from fedbraid.studies.run_origins import duration
from fedbraid.studies.study_notes import read_notes
from fedbraid.studies.verdict_pages import page_path, section_link, verdict_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Studies, beside their papers"
COLUMNS = "report", "what it is", "cells run", "untrained", "equivalence", "mean difference", "claims", "time"
NOTES = (
    "cells run: those with a number, of all that need training and have data that can be had",
    "untrained: cells with a number that needs no training, such as of a split, or that is only calculated",
    "equivalence: accuracies beside the paper's; the same if the 95 % interval of our mean lies within the recipe's "
    "margin around the paper's number, different if it lies outside, open otherwise, as with one seed",
    "mean difference: ours minus the paper's, over these cells; points are those of accuracies alone, and everything "
    "else, such as an accuracy's spread, has a mean of its own",
    "claims: a verdict, with 'so far' where some of the claim's cells were not run",
    "time: of all rounds of its runs, by processor; tables that share runs count them each",
    "the sentence above all: cells of several tables with the same runs, metric and number of the paper's count once",
)
READING = (
    "A dot is an accuracy of a study that was run as its recipe says, once however many tables have it: on the line it "
    "is the paper's number, above it ours is higher."
)
NOT_RUN = "not run"


def row(report: Reported) -> tuple[str, ...]:
    """Return a report's line, without its link."""
    return (
        report.told,
        f"{len(report.trained)} of {report.trainable}" if report.trainable else NOTHING,
        str(len(report.untrained) or NOTHING),
        report.equivalent or NOTHING,
        report.difference,
        report.verdicts,
        ", ".join(f"{duration(spent)} {kind}" for kind, spent in report.cost["seconds"].items()) or NOTHING,
    )


def headline(found: Sequence[Reported]) -> str:
    """Return all reports in a sentence: cells that several tables share count once."""
    cells = _different((one.folder, cell) for one in found for cell in one.run)
    trained = sum(1 for cell in cells if cell["trained"])
    words = [f"{len(found)} report{'s' * (len(found) > 1)} with {trained} different cells that were trained"]
    words[0] += f" and {len(cells) - trained} that need no training" if trained < len(cells) else ""
    compared = [cell for cell in _as_recipes_say(found) if cell["equivalence"]]
    if compared:
        counts = Counter(cell["equivalence"]["verdict"] for cell in compared)
        words.append(
            f"as their recipes say, of {len(compared)} accuracies that the paper has too {counts['same']} are the same "
            f"within the margin, {counts['differs']} differ and {counts['open']} are open"
        )
    apart = [abs(cell["difference"]) for cell in _accuracies(found)]
    if apart:
        words.append(f"accuracies are {fmean(apart):.2f} points from the paper's on average")
    if any(one.cost["runs"] for one in found):
        words.append(total_time(found))
    return "; ".join(words) + "."


def total_time(found: Sequence[Reported]) -> str:
    """Return the time of all different runs by processor, each run once however many tables have it."""
    costs: dict[str, Mapping[str, Any]] = {}
    for cell in (cell for one in found for cell in one.cells if cell["run"]):
        known = costs.get(cell["run"])
        if known is None or cell["cost"]["runs"] > known["runs"]:  # a table may have more seeds of a run than another
            costs[cell["run"]] = cell["cost"]
    seconds = Counter[str]()
    for cost in costs.values():
        seconds.update(cost["seconds"])
    runs = sum(cost["runs"] for cost in costs.values())
    return f"{runs} runs took {listed([f'{duration(spent)} on {kind}' for kind, spent in sorted(seconds.items())])}"


def _as_recipes_say(found: Sequence[Reported]) -> list[Mapping[str, Any]]:
    """Cells beside the paper's, each once."""
    return _different((one.folder, cell) for one in found if not one.variant for cell in one.compared)


def _different(cells: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    """Each of the folders' cells once, though it stands in several tables; where one of them has the paper's spread,
    as that has it."""
    kept: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for folder, cell in cells:
        paper = cell["paper"] or {"mean": None, "std": None}
        same = cell["run"] or (folder, cell["row"], cell["column"]), cell["metric"], paper["mean"]
        if same not in kept or paper["std"] is not None:
            kept[same] = cell
    return [*kept.values()]


def _accuracies(found: Sequence[Reported]) -> list[Mapping[str, Any]]:
    return [cell for cell in _as_recipes_say(found) if is_accuracy(cell)]


def against_the_paper(found: Sequence[Reported], *, theme: Theme = LIGHT) -> Figure:
    """Our numbers over the paper's, a panel for each paper."""
    papers = sorted({one.paper for one in found})
    by_paper = {paper: _accuracies([one for one in found if one.paper == paper]) for paper in papers}
    drawn, panels = panels_of.make_panels([paper for paper, cells in by_paper.items() if cells], 3.2, theme)
    for paper, axes in panels.items():
        cells = by_paper[paper]
        theirs, ours = ([cell[whose]["mean"] for cell in cells] for whose in ("paper", "ours"))
        low, high = min(theirs + ours) - 1, max(theirs + ours) + 1
        axes.plot([low, high], [low, high], color=theme.muted, linewidth=1.0, zorder=1)
        dots = stroke(0, 1, theme) | {"linestyle": "none", "alpha": 0.65}
        axes.plot(theirs, ours, **dots, zorder=2)
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
    panels_of.name_axes(panels, "the paper's accuracy (%)", "ours (%)", theme)
    return drawn


def write_overview(out: Path) -> list[Path]:
    """Write the overview and a page for each paper into `out`; return the paths of what was written.

    Raises:
        UserError: there are no reports, or a file of theirs or the notes cannot be read.
    """
    notes = read_notes(out)
    found = reports(out, notes.missing)
    if not found:
        raise UserError(f"{out} has no reports; `fedbraid study run NAME --out {out}` makes one")
    drawing = Drawing("overview", "Ours and the papers' numbers", READING, partial(against_the_paper, found))
    drawn = [drawing.render()] if _accuracies(found) else []
    if not drawn:
        (out / "overview.png").unlink(missing_ok=True)  # of what was here before
    contents = {
        "overview.md": page_markdown(page(found, section_link, drawn)).encode(),
        **{f"{picture.name}.png": picture.light for picture in drawn},
        "overview.html": to_html(page(found, lambda one: f"{quote(one.folder)}/report.html", drawn)).encode(),
    }
    for path in dict.fromkeys(page_path(one.study["paper"]) for one in found):
        mine = [one for one in found if page_path(one.study["paper"]) == path]
        contents[path] = verdict_page(mine[0].paper, mine, notes, _not_run(mine)).encode()
    for name, content in contents.items():
        write_bytes(out / name, content)
    return [out / name for name in contents]


def _not_run(found: Sequence[Reported]) -> list[str]:
    """Return the tables and figures of the reports' paper that there are recipes for and that nothing was run of."""
    reported, papers = ({one.study[key] for one in found} for key in ("name", "paper"))
    others = (read(file) for file in files([]) if file.stem not in reported)
    return [f"{recipe.item}: {recipe.title}" for recipe in others if recipe.paper in papers]


def page(found: Sequence[Reported], link: Callable[[Reported], str], drawn: Sequence[Picture] = ()) -> Page:
    """The overview as data; each row links to what `link` says."""
    texts = {"report", "what it is", "mean difference", "claims", "equivalence", "time"}
    columns = tuple(TableColumn(title, title, words=title in texts) for title in COLUMNS)
    rows = tuple((TableCell(one.folder, link=link(one)), *map(TableCell, row(one))) for one in found)
    pictures = [Section(picture.title, (picture,)) for picture in drawn]
    table = Section("Reports", (TableData(columns, rows, NOTES),))
    return Page(TITLE, (Paragraph(headline(found), "headline"),), (*pictures, table))
