"""Pictures for reports: each on light and on dark paper, with a line that says what to read from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedbraid.report import plots
from fedbraid.report.style import DARK, LIGHT

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    reading: str
    light: bytes
    dark: bytes
    kind: ClassVar[str] = "picture"


@dataclass(frozen=True)
class Drawing:
    """A picture before it is drawn: `draw` takes the theme."""

    name: str
    title: str
    reading: str
    draw: Callable[..., Figure]

    def render(self) -> Picture:
        """Draw it on light and on dark paper."""
        light, dark = (plots.png(self.draw(theme=theme)) for theme in (LIGHT, DARK))
        return Picture(self.name, self.title, self.reading, light, dark)
