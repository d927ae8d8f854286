"""A report as data: sections of blocks. `html` and `markdown` write it down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from fedbraid.report.pictures import Picture
from fedbraid.report.tables import TableData


@dataclass(frozen=True)
class Paragraph:
    text: str
    style: Literal["", "note", "caveat", "loud", "headline", "subheading"] = "note"
    kind: ClassVar[str] = "paragraph"


@dataclass(frozen=True)
class Pairs:
    """Names and values."""

    rows: Sequence[tuple[str, str]]
    kind: ClassVar[str] = "pairs"


@dataclass(frozen=True)
class Code:
    """Lines that are shown as they are."""

    text: str
    kind: ClassVar[str] = "code"


@dataclass(frozen=True)
class Details:
    """Blocks that a page shows on request."""

    summary: str
    blocks: tuple[Block, ...]
    kind: ClassVar[str] = "details"


@dataclass(frozen=True)
class Item:
    """A point of a list: its first word or two, the text, and what supports it."""

    text: str
    lead: str = ""
    note: str = ""
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True)
class Items:
    items: tuple[Item, ...]
    kind: ClassVar[str] = "items"


@dataclass(frozen=True)
class Analyses:
    """The analyses of a run; `fedbraid.report.analysed` replaces them in a page that exists."""

    blocks: tuple[Block, ...]
    kind: ClassVar[str] = "analyses"


Block = TableData | Picture | Paragraph | Pairs | Code | Details | Items | Analyses


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page:
    """A whole report. `lead` stands between the title and the table of contents."""

    title: str
    lead: tuple[Paragraph, ...]
    sections: tuple[Section, ...]
    subtitle: str = ""

    def only(self, *titles: str) -> Page:
        """The page with these of its sections, where it has them."""
        return replace(self, sections=tuple(section for section in self.sections if section.title in titles))


def picture_sections(pictures: Sequence[Picture]) -> list[Section]:
    """A section for each picture."""
    return [Section(picture.title, (picture,)) for picture in pictures]
