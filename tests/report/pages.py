"""A report read back: its elements, its text and the data that it embeds."""

from __future__ import annotations

import json
from functools import cache
from html.parser import HTMLParser

from report.synthetic import scan
from sharpmax import report
from sharpmax.results import Result


class Page(HTMLParser):
    """The elements of a page, and the text of each script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._inside: str | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def data(self) -> list[dict]:
        """What the sections embed for the page's script."""
        return [json.loads(script) for script in self.scripts if script.startswith("{")]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@cache
def html_of_a_scan() -> str:
    return report.render([scan()])


@cache
def tiny() -> Result:
    return scan(2, 2, 2)
