"""Pages as HTML: one file each that needs no network, no script and no second file, in light and dark."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedbraid.report.pages import Block, Page
from fedbraid.report.style import DARK, LIGHT
from fedbraid.report.words import NOTHING, printable


def to_html(page: Page) -> str:
    """Return the whole document; the same page gives the same text."""
    return _templates().get_template("page.html").render(page=page, light=LIGHT, dark=DARK)


def blocks_to_html(blocks: Sequence[Block]) -> str:
    """Return blocks as a part of a document."""
    return str(_templates().get_template("blocks.html").module.blocks(blocks))  # type: ignore[attr-defined]


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("fedbraid.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        finalize=_shown,
    )
    made.globals["nothing"] = NOTHING
    made.filters["embedded"] = _embedded
    return made


def _shown(value: Any) -> Any:
    """Remove what could turn the reading direction or steer a terminal. Markup is ours, and only escaped text."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _embedded(png: bytes) -> str:
    return f"data:image/png;base64,{b64encode(png).decode()}"
