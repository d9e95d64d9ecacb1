"""Reports: one HTML file that works from disk, with everything inside it and all text escaped.

A content security policy in the page allows its one script by its hash and forbids every request.
An error in the escaping could therefore neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC
from functools import cache
from importlib import resources
from typing import Any

from sharpmax._errors import MissingExtraError
from sharpmax.report import palette
from sharpmax.report.blocks import (
    Block,
    Chart,
    Content,
    Dots,
    Frames,
    Heads,
    HeadStatistics,
    TokenView,
)
from sharpmax.report.numbers import plural, round_all
from sharpmax.results import Calibration, Result

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
except ModuleNotFoundError as error:
    missing = (error.name or "jinja2").partition(".")[0]
    raise MissingExtraError(missing, "report", "the HTML report") from error

STYLES = ("charts.css", "page.css")  # in this order: the second overrides the first
SCRIPTS = (
    *("common.js", "axes.js", "chart.js", "hover.js", "map.js", "table.js"),
    *("scan.js", "head.js", "curves.js", "heads.js", "frames.js", "dots.js"),
    *("tokens.js", "start.js"),
)
WIDE = 16
"""Heads per layer above which a map takes the whole width of the page."""

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


@dataclass(frozen=True)
class Section:
    """The part of a page about one result."""

    title: str
    what: str
    anchor: str
    parts: dict[str, str]
    """The headings of its blocks, by anchor."""
    html: Markup


def page(
    sections: Sequence[tuple[Content, Result | Calibration]], comparison: Content | None = None
) -> str:
    """Return the whole page: a section per result, and the comparison of two scans before them."""
    level = 1 if len(sections) == 1 else 2  # several sections stand under the title of the page
    made = [
        section(content, result, f"{result.kind}-{number}", level)
        for number, (content, result) in enumerate(sections, start=1)
    ]
    if comparison is not None:
        first = next(place for place, (_, one) in enumerate(sections) if one.kind == "scan")
        made.insert(first, section(comparison, None, "comparison", level))
    code = script()
    return fill(
        "page.html",
        sections=made,
        results=len(sections),
        style=style(),
        script=code,
        allowed=f"'sha256-{_sha256(code)}'",
    )


def section(
    content: Content, result: Result | Calibration | None, anchor: str, level: int
) -> Section:
    """Return the section of a result; calibrations and comparisons have no provenance."""
    origin = provenance(result, content.took) if isinstance(result, Result) else None
    html = fill("section.html", anchor=anchor, level=level, content=content, origin=origin)
    parts = {}
    for number, block in enumerate(content.blocks, start=1):
        parts[f"{anchor}-{number}"] = block.title
        if isinstance(block, HeadStatistics) and block.tokens:
            parts[f"{anchor}-tokens"] = block.tokens.title
    if origin is not None:
        parts[f"{anchor}-origin"] = "How it was made"
    return Section(content.title, content.what, anchor, parts, html)


def fragment(facts: Sequence[str], blocks: Sequence[Block], notes: Sequence[str] = ()) -> Markup:
    """Return sentences and blocks without a page around them, for the explorer."""
    return fill("fragment.html", facts=facts, blocks=blocks, notes=notes)


def fill(template: str, **values: Any) -> Markup:
    """Fill a template with values; each is escaped unless it is our own markup."""
    return Markup(_environment().get_template(template).render(values))


def style() -> Markup:
    """Return the style sheet of every page: the palette's colours, then ours."""
    return Markup(palette.css() + "".join(map(_read, STYLES)))


def script(end: str = "startAll(document);\nreportHeight();") -> Markup:
    """Return the script of every page; `end` starts its parts."""
    parts = "\n".join(map(_read, SCRIPTS))
    return Markup(f'(() => {{\n"use strict";\n{parts}\n{end}\n}})();\n')


def provenance(result: Result, took: str = "") -> dict[str, str]:
    """Return where a result comes from, by name; `took` adds to the time."""
    origin = result.provenance
    versions = {"sharpmax": origin.sharpmax, "python": origin.python, **origin.packages}
    seeds = {"Seeds": ", ".join(map(str, result.seeds))} if result.seeds else {}
    return {
        "Command": origin.command,
        "Started": f"{origin.started.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "Took": f"{origin.seconds:,.1f} s in all{took}",
        **seeds,
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "Commit": origin.commit or "not run from a checkout",
        "Machine": f"{origin.processor}, {plural(origin.cores, 'core')}, {origin.platform}",
    }


def embed_json(value: Any) -> Markup:
    """Return JSON for a script element, with every character escaped that could end the element.

    Non-ASCII characters are escaped too, and with them U+2028 and U+2029.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return Markup(text)


def block_data(block: Chart | Dots | Frames | Heads | HeadStatistics | TokenView) -> Markup:
    """Return the data of a block, as the page's script reads it."""
    if isinstance(block, Chart):
        lines = [asdict(line) | {"colour": f"var(--{line.colour})"} for line in block.coloured()]
        data = asdict(block) | {"lines": lines}
    elif isinstance(block, Dots):
        data = asdict(block)
        for row in data["rows"]:
            row["colour"] = f"var(--{row['colour']})"
    elif isinstance(block, Frames):
        shown = ("rows", "columns", "ends", "digits", "unit", "frames", "signed")
        data = {field: getattr(block, field) for field in shown}
    elif isinstance(block, Heads):
        fields = ("key", "name", "digits", "unit", "scale")
        data = {
            "layers": list(block.layers),
            "heads": block.numbers or range(len(block.present[0])),
            "present": block.present,
            "statistics": [
                {field: getattr(measure, field) for field in fields} for measure in block.measures
            ],
            "values": {measure.key: measure.values for measure in block.measures},
            "first": block.first,
            "without": block.without,
            **block.extra,
        }
    else:
        data = dict(block.data)
    return embed_json(round_all(data))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("sharpmax.report.renderers"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"block_data": block_data, "WIDE": WIDE}
    return environment


def _read(name: str) -> str:
    """Read a file as it is: braces of CSS and JavaScript are not Jinja's."""
    return (resources.files("sharpmax.report.renderers") / "templates" / name).read_text("utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
