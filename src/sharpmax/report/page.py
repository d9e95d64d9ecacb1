"""A page that works from disk, for ever: everything inlined, everything foreign escaped.

A policy in the page itself names its one script by its hash and forbids every request, so that a
hole in the escaping could neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from sharpmax._errors import MissingExtraError

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
except ModuleNotFoundError as error:
    missing = (error.name or "jinja2").partition(".")[0]
    raise MissingExtraError(missing, "report", "the HTML report") from error

STYLES = ("charts.css", "page.css")  # the second has the last word, on phones and paper
SCRIPTS = (
    *("common.js", "axes.js", "chart.js", "hover.js", "map.js", "table.js"),
    *("scan.js", "head.js", "curves.js", "heads.js", "frames.js", "start.js"),
)

_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


@dataclass(frozen=True)
class Section:
    """One result as a piece of the page."""

    title: str
    what: str
    """The kind of result, in words."""
    anchor: str
    html: Markup


def assemble(sections: Sequence[Section]) -> str:
    """The whole page around the sections."""
    own = script()
    return fill(
        "page.html",
        sections=sections,
        style=style(),
        script=own,
        allowed=f"'sha256-{_digest(own)}'",
    )


def fill(template: str, **values: Any) -> Markup:
    """A template with these values, each escaped unless it is markup of ours."""
    return Markup(_environment().get_template(template).render(values))


def embedded_json(value: Any) -> Markup:
    """JSON that can stand inside a script element: no character of it can end that element.

    Non-ASCII characters are escaped too, and with them U+2028 and U+2029.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character, escape in _ESCAPED.items():
        text = text.replace(character, escape)
    return Markup(text)


@cache
def _environment() -> Environment:
    """One for all sections: it keeps the templates that it has read."""
    return Environment(
        loader=PackageLoader("sharpmax.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def style() -> Markup:
    """The style sheet of every page."""
    return Markup("".join(map(_template, STYLES)))


def script(end: str = "startAll(document);\ntellHeight();") -> Markup:
    """The script of every page; `end` says when which part of it starts."""
    parts = "\n".join(_template(name) for name in SCRIPTS)
    return Markup(f'(() => {{\n"use strict";\n{parts}\n{end}\n}})();\n')


def fragment(facts: Sequence[str], blocks: Sequence[Any], notes: Sequence[str] = ()) -> Markup:
    """Sentences and blocks without a page around them, for a page that changes them."""
    return fill("fragment.html", facts=facts, blocks=blocks, notes=notes)


def _template(name: str) -> str:
    """Read as it is: braces of CSS and JavaScript are not Jinja's."""
    return (resources.files("sharpmax.report") / "templates" / name).read_text("utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
