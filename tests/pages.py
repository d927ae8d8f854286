"""Pages as a browser would see them."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "img", "source", "br"}


class Page(HTMLParser):
    """Collects what a browser would do: the tags it opens, what it would load, the text it shows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.resources: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.resources += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    @property
    def embedded(self) -> list[str]:
        """What it loads, without the links within the page."""
        return [resource for resource in self.resources if not resource.startswith("#")]
