"""Figures of a study, from what its recipe asks for: curves of its runs, lines, bars and splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbraid.report import partition_figures
from fedbraid.report.bars import Bar, BarPanels
from fedbraid.report.bars import bars as draw_bars
from fedbraid.report.curves import METRICS, CurvePanels, curve_figure
from fedbraid.report.style import LIGHT, NORMAL, Theme
from fedbraid.report.value_lines import tick_values, value_lines
from fedbraid.report.words import number, pattern, shortened
from fedbraid.studies.figure_data import FigureData
from fedbraid.studies.key_labels import key_words
from fedbraid.studies.naming import Place
from fedbraid.studies.round_series import is_share

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PAPERS = "the paper's number"
DIGITS = 2
"""Behind the point, at the most, of a number at a bar: the table has the others."""


def course_words(of: str) -> str:
    """Return the label of a course, with its unit."""
    return METRICS.get(of) or key_words(of) + (" (%)" if is_share(of) else "")


def curves(asked: FigureData, *, theme: Theme = LIGHT) -> Figure:
    """A panel for each column, in it a curve for each row."""
    panels = {
        column: {row: asked.courses[row, column] for row in asked.rows if (row, column) in asked.courses}
        for column in asked.columns
    }
    picture, looks = asked.picture, asked.looks
    words, percent = course_words(picture.of), is_share(picture.of)
    shown = CurvePanels(panels, asked.rows, looks, words, picture.x, percent, picture.log_x, focus=True)
    return curve_figure(shown, theme=theme)


def line(asked: FigureData, *, theme: Theme = LIGHT) -> Figure:
    """Each row's numbers over its columns' x, with their standard deviations; the paper's as hollow marks."""
    columns = sorted(asked.columns, key=lambda column: asked.x[column])
    ours, paper = (
        {row: {asked.x[c]: (n.mean, n.whisker) for c in columns for n in [of((row, c))]} for row in asked.rows}
        for of in (asked.ours, asked.paper)
    )
    x = "" if asked.picture.x == "round" else asked.picture.x
    beside = paper if asked.has_paper else None
    figure = value_lines(ours, asked.looks, x, asked.label, beside=beside, beside_label=PAPERS, theme=theme)
    tick_values(figure, [asked.x[column] for column in columns], len(columns), log=asked.picture.log_x)
    return figure


def bars(asked: FigureData, *, theme: Theme = LIGHT) -> Figure:
    """A panel for each column, in it a bar for each row; the paper's number as an upright mark."""
    panels = {column: {row: _bar(asked, (row, column)) for row in asked.rows} for column in asked.columns}
    axes = {column: asked.named(column) for column in asked.columns}
    return draw_bars(BarPanels(panels, axes, asked.looks, PAPERS), theme=theme)


def _bar(asked: FigureData, place: Place) -> Bar:
    ours, paper = asked.ours(place), asked.paper(place)
    how = pattern(ours.mean, min(asked.digits, DIGITS), share=asked.entries[place].share)
    return Bar(ours.mean, ours.whisker, paper.mean, number(ours.mean, how))


def split(label_counts: partition_figures.Counts, column: str, *, theme: Theme = LIGHT) -> Figure:
    """Draw a column's split: the classes that each client holds."""
    figure: Figure = partition_figures.clients(label_counts, theme=theme)
    name = figure.suptitle(shortened(column, 80), x=0.01, ha="left", fontsize=NORMAL, color=theme.ink)
    name.set_parse_math(False)
    return figure
