"""The look of pictures: colours that colour-blind readers can tell apart, and strokes that need no colour."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from fedbraid.report.words import shortened

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

WIDTH = 6.4
DPI = 200
SMALL, NORMAL = 8.5, 9.5


@dataclass(frozen=True)
class Theme:
    ink: str
    muted: str
    grid: str
    paper: str
    palette: tuple[str, ...]
    ramp: tuple[str, ...]
    """From nothing (the paper) to everything."""


# The Okabe-Ito colours without the yellow, which vanishes on white, and with the ink for their black.
_OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

LIGHT = Theme(
    ink="#1b1f23",
    muted="#57606a",
    grid="#e4e7ea",
    paper="#ffffff",
    palette=(*_OKABE_ITO, "#1b1f23"),
    ramp=("#ffffff", "#b9d9ee", "#5aa5d3", "#0072b2", "#00304d"),
)
DARK = Theme(
    ink="#e6e9ec",
    muted="#a3abb3",
    grid="#2c3238",
    paper="#14181c",
    palette=("#3d9ad1", *_OKABE_ITO[1:], "#e6e9ec"),
    ramp=("#14181c", "#0f3b57", "#0b6496", "#56b4e9", "#e2f3fd"),
)

CLASS_COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442", "#7a7f85", "#8c564b", "#6a51a3"),
    *("#7fb8d8", "#f6d28f", "#8fd3bd", "#eeb187", "#e8c4d8", "#b5dcf4", "#f9f4b0", "#c4c8cc", "#c9a9a2", "#b7abd6"),
)
"""One for each class, on any paper: ten hues, then the same ones pale. Neighbours differ in lightness too."""

# 7 colours, 5 strokes and 9 markers: their cycles meet again only after 315 methods.
_STROKES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.6, 1.2, 1.6)), (0, (2.6, 1.2)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")


def stroke(index: int, points: int, theme: Theme, dashes: int | None = None) -> dict[str, Any]:
    """Line2D properties of the `index`-th method: colour, dashes and a marker now and then.

    `dashes` are others than its own, for a method that shares the colour and the marker of that one.
    """
    step = max(1, points // 8)
    return {
        "color": theme.palette[index % len(theme.palette)],
        "linestyle": _STROKES[(index if dashes is None else dashes) % len(_STROKES)],
        "linewidth": 1.6,
        "marker": _MARKERS[index % len(_MARKERS)],
        "markersize": 4.5,
        "markeredgecolor": theme.paper,
        "markeredgewidth": 0.6,
        # Staggered, so that the markers of two close lines do not hide each other.
        "markevery": (((index * step) // 5 + ((dashes or 0) * step) // 2) % step, step),
    }


@contextmanager
def in_any_script() -> Iterator[None]:
    """A label may use a script that the font lacks; an empty box in the picture is no reason for alarm."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def new_figure(height: float, theme: Theme) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), dpi=DPI, facecolor=theme.paper, layout="constrained")


def style_axes(axes: Axes, theme: Theme, *, frame: bool = True, grid: bool = True) -> Axes:
    """Two thin spines, a faint grid behind the data, quiet ticks."""
    axes.set_facecolor(theme.paper)
    for side, spine in axes.spines.items():
        spine.set_visible(frame and side in ("left", "bottom"))
        spine.set_color(theme.muted)
        spine.set_linewidth(0.8)
    axes.tick_params(
        colors=theme.muted, labelcolor=theme.ink, labelsize=SMALL, length=3 if frame else 0, width=0.8, which="major"
    )
    axes.tick_params(which="minor", length=0)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(True, color=theme.grid, linewidth=0.8, linestyle="-")
    return axes


def label_axes(axes: Axes, theme: Theme, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=NORMAL, color=theme.ink, parse_math=False)
    axes.set_ylabel(y, fontsize=NORMAL, color=theme.ink, parse_math=False)


def legend_columns(labels: Sequence[str]) -> int:
    """As many columns as fit across the picture, at about 86 letters per line, handle included."""
    widest = max((len(shortened(label, 72)) for label in labels), default=1)
    return max(1, min(4, len(labels), 86 // (widest + 9)))


def legend_height(labels: Sequence[str]) -> float:
    return 0.19 * ceil(len(labels) / legend_columns(labels)) + 0.1


def legend(figure: Figure, handles: Sequence[Line2D], labels: Sequence[str], theme: Theme) -> None:
    columns = legend_columns(labels)
    key_above(figure, handles, labels, theme, 72, columns, handlelength=3.2, columnspacing=1.6, borderaxespad=0.2)


def key_above(
    figure: Figure,
    handles: Sequence[Artist],
    labels: Sequence[str],
    theme: Theme,
    letters: int,
    columns: int,
    **spaces: float,
) -> None:
    """Above the axes, where it can hide no data; labels of so many letters at most. `spaces` are matplotlib's."""
    drawn = figure.legend(
        handles,
        [str(place) for place in range(len(handles))],
        loc="outside upper center",
        ncols=columns,
        frameon=False,
        fontsize=SMALL,
        labelcolor=theme.ink,
        **spaces,
    )
    # Texts are set afterwards: matplotlib would drop a label with a leading underscore and typeset one with dollars.
    for text, label in zip(drawn.get_texts(), labels, strict=True):
        text.set_parse_math(False)
        text.set_text(shortened(label, letters))


def ramp(theme: Theme) -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("amount", list(theme.ramp))


def readable_on(colour: tuple[float, float, float, float], theme: Theme) -> str:
    """Ink or paper, whichever stands out more from a cell of this colour."""
    from matplotlib.colors import to_rgba

    return max((theme.ink, theme.paper), key=lambda choice: _contrast(to_rgba(choice), colour))


def write_message(figure: Figure, sentence: str, theme: Theme) -> Figure:
    """A picture of nothing still says why there is nothing."""
    figure.text(0.5, 0.5, sentence, ha="center", va="center", fontsize=NORMAL, color=theme.muted, parse_math=False)
    return figure


def _contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The contrast ratio of the web accessibility guidelines, 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: tuple[float, ...]) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
