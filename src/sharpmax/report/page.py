"""A page that works from disk, for ever: everything inlined, everything foreign escaped.

A policy in the page itself names the two scripts by their hash and forbids every request, so that
neither a hole in the escaping nor a chart library's habit can run or load anything else.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from sharpmax._errors import MissingExtraError

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs
except ModuleNotFoundError as error:
    missing = (error.name or "plotly").partition(".")[0]
    raise MissingExtraError(missing, "report", "the HTML report") from error

SCRIPTS = ("common.js", "map.js", "head.js", "curves.js", "table.js", "start.js")

_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


@dataclass(frozen=True)
class Section:
    """One result as a piece of the page."""

    title: str
    anchor: str
    html: Markup


def assemble(sections: Sequence[Section]) -> str:
    """The whole page around the sections."""
    # Ours first: the map and the table work before the chart library, which takes its second.
    scripts = (_our_script(), Markup(get_plotlyjs()))
    return fill(
        "page.html",
        sections=sections,
        style=Markup(_template("page.css")),
        scripts=scripts,
        allowed=" ".join(f"'sha256-{_digest(script)}'" for script in scripts),
    )


def fill(template: str, **values: Any) -> Markup:
    """A template with these values, each escaped unless it is markup of ours."""
    environment = Environment(
        loader=PackageLoader("sharpmax.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return Markup(environment.get_template(template).render(values))


def embedded_json(value: Any) -> Markup:
    """JSON that can stand inside a script element: no character of it can end that element.

    Non-ASCII characters are escaped too, and with them U+2028 and U+2029.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character, escape in _ESCAPED.items():
        text = text.replace(character, escape)
    return Markup(text)


def _our_script() -> Markup:
    parts = "\n".join(_template(name) for name in SCRIPTS)
    return Markup(f'(() => {{\n"use strict";\n{parts}}})();\n')


def _template(name: str) -> str:
    """Read as it is: braces of CSS and JavaScript are not Jinja's."""
    return (resources.files("sharpmax.report") / "templates" / name).read_text("utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
