"""All reports of a folder on one page: what was run, how near the paper's numbers it comes, which claims hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fedbraid.core.metrics import METRICS as FURTHER
from fedbraid.errors import UserError
from fedbraid.report.document import document, figure, text
from fedbraid.report.pictures import Picture, picture
from fedbraid.report.style import LIGHT, Theme, stroke
from fedbraid.report.table import literal, markdown_row
from fedbraid.report.words import NOTHING
from fedbraid.storage.files import write_bytes
from fedbraid.studies.cell_metrics import parse
from fedbraid.studies.claims import POINTS
from fedbraid.studies.reporting import panels as panels_of
from fedbraid.studies.reporting.account import PAPERS
from fedbraid.studies.reporting.words import signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Studies, beside their papers"
COLUMNS = "report", "what it is", "cells run", "within the spreads", "mean difference", "claims"
NOTES = (
    "cells run: those with a number, of all that there are data for where the report was made",
    "within the spreads: cells whose difference from the paper's is no larger than both standard deviations together "
    "(one that is not known counts as 0), of those that the paper has a number for",
    "mean difference: ours minus the paper's, over these cells; points are those of accuracies alone, and everything "
    "else, such as an accuracy's spread, has a mean of its own",
    "claims: a verdict, with 'so far' where some of the claim's cells were not run",
    "the sentence above all: cells of several tables with the same runs, metric and number of the paper's count once",
)
READING = (
    "A dot is an accuracy of a study that was run as its recipe says, once however many tables have it: on the line it "
    "is the paper's number, above it ours is higher."
)
NOT_RUN = "not run"
PICTURE = "overview.png"


@dataclass(frozen=True)
class Reported:
    """What a report says, as its results.json has it."""

    folder: str
    study: Mapping[str, str]
    variant: str
    cells: tuple[Mapping[str, Any], ...]
    claims: tuple[Mapping[str, Any], ...]

    @property
    def paper(self) -> str:
        return PAPERS.get(self.study["paper"], self.study["paper"])

    @property
    def told(self) -> str:
        return f"{self.paper}, {self.study['item']}: {self.study['title']}" + (
            f" ({self.variant})" if self.variant else ""
        )

    @property
    def run(self) -> list[Mapping[str, Any]]:
        return [cell for cell in self.cells if cell["ours"] and cell["ours"]["mean"] is not None]

    @property
    def possible(self) -> int:
        return sum(1 for cell in self.cells if not cell["skipped"])

    @property
    def compared(self) -> list[Mapping[str, Any]]:
        return [cell for cell in self.cells if cell["difference"] is not None]

    @property
    def within(self) -> str:
        near = sum(1 for cell in self.compared if not cell["beyond_spreads"])
        return f"{near} of {len(self.compared)}" if self.compared else NOTHING

    @property
    def difference(self) -> str:
        """Of each kind, as a mean of percents and rounds says nothing."""
        by_kind: dict[str, list[float]] = {}
        for cell in self.compared:
            by_kind.setdefault(_kind(cell), []).append(cell["difference"])
        told = (f"{signed(fmean(some), ',.2f')} {kind}".strip() for kind, some in by_kind.items())
        return ", ".join(told) or NOTHING

    @property
    def verdicts(self) -> str:
        found = Counter(map(_verdict, self.claims))
        return ", ".join(f"{verdict}: {number}" for verdict, number in found.items()) or NOTHING

    @property
    def row(self) -> tuple[str, ...]:
        return self.told, f"{len(self.run)} of {self.possible}", self.within, self.difference, self.verdicts


def _kind(cell: Mapping[str, Any]) -> str:
    """What its difference is counted in; what is in % and no level of accuracy is told by its own name."""
    is_other = cell["unit"] == POINTS and not _is_accuracy(cell)
    return f"in {cell['reads']}" if is_other else str(cell["unit"])


def _is_accuracy(cell: Mapping[str, Any]) -> bool:
    """Whether it is a level of accuracy in %: less is better of spreads, which are near 0 whatever the level."""
    return cell["unit"] == POINTS and cell["higher_is_better"] and parse(cell["metric"]).of not in FURTHER


def _verdict(claim: Mapping[str, Any]) -> str:
    if not claim["pairs"]:
        return NOT_RUN
    return f"{claim['so_far']} so far" if claim["missing"] else str(claim["verdict"])


def reports(out: Path) -> list[Reported]:
    """What the reports in a folder say, by name."""
    return [_read(file) for file in sorted(out.glob("*/results.json"))]


def _read(file: Path) -> Reported:
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        one = Reported(file.parent.name, told["study"], told["variant"], tuple(told["cells"]), tuple(told["claims"]))
        to_markdown([one])  # all that is said of it: what it lacks is told here, with its file
        return one
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is no study's results ({error}); `fedbraid study report` writes it anew") from error


def headline(found: Sequence[Reported]) -> str:
    cells = _different((one.folder, cell) for one in found for cell in one.run)
    exact = _as_recipes_say(found)
    apart = [abs(cell["difference"]) for cell in _accuracies(found)]
    words = [f"{len(found)} report{'s' * (len(found) > 1)} with {len(cells)} different cells that were run"]
    if exact:
        near = sum(1 for cell in exact if not cell["beyond_spreads"])
        words.append(
            f"as their recipes say, {near} of {len(exact)} that the paper has too are within the spreads of its numbers"
        )
    if apart:
        words.append(f"accuracies are {fmean(apart):.2f} points from the paper's on average")
    return "; ".join(words) + "."


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
    return [cell for cell in _as_recipes_say(found) if _is_accuracy(cell)]


def against_the_paper(found: Sequence[Reported], *, theme: Theme = LIGHT) -> Figure:
    """Our numbers over the paper's, a panel for each paper."""
    papers = sorted({one.paper for one in found})
    by_paper = {paper: _accuracies([one for one in found if one.paper == paper]) for paper in papers}
    drawn, panels = panels_of.made([paper for paper, cells in by_paper.items() if cells], 3.2, theme)
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
    """Write the overview into `out`; the paths of what was written."""
    found = reports(out)
    if not found:
        raise UserError(f"{out} has no reports; `fedbraid study run NAME --out {out}` makes one")
    contents: dict[str, bytes] = {"overview.md": to_markdown(found).encode()}
    drawn = None
    if _accuracies(found):
        draw = partial(against_the_paper, found)
        drawn = picture("overview", "Ours and the papers' numbers", READING, draw)
        contents[PICTURE] = drawn.light
    contents["overview.html"] = to_html(found, drawn).encode()
    if drawn is None:
        (out / PICTURE).unlink(missing_ok=True)  # of what was here before
    for name, content in contents.items():
        write_bytes(out / name, content)
    return [out / name for name in contents]


def to_markdown(found: Sequence[Reported]) -> str:
    lines = [f"# {TITLE}", "", literal(headline(found)), ""]
    lines += [f"![{READING}]({PICTURE})", ""] if _accuracies(found) else []
    lines += [markdown_row(COLUMNS), markdown_row(["---", "---", *["---:"] * 3, "---"])]
    lines += [
        markdown_row([f"[{literal(one.folder)}]({quote(one.folder)}/table.md)", *map(literal, one.row)])
        for one in found
    ]
    return "\n".join([*lines, "", *[f"- {note}" for note in NOTES]]) + "\n"


def to_html(found: Sequence[Reported], drawn: Picture | None) -> str:
    titles = "".join(f'<th scope="col">{text(title)}</th>' for title in COLUMNS)
    rows = "\n".join(
        f'<tr><th scope="row"><a href="{quote(one.folder)}/report.html">{text(one.folder)}</a></th>'
        f"{''.join(f'<td>{text(word)}</td>' for word in one.row)}</tr>"
        for one in found
    )
    body = [f"<h1>{TITLE}</h1>", f'<p class="headline">{text(headline(found))}</p>']
    body += [figure(drawn)] if drawn else []
    body.append(
        f'<div class="wide"><table>\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>'
    )
    body.append(f'<p class="note">{"<br>".join(map(text, NOTES))}</p>')
    return document(TITLE, "\n".join(body))
