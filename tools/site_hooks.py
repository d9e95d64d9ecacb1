"""mkdocs hooks: build the site from pages that stay plain Markdown on the repository's host.

Formulas between dollars become MathML, which browsers draw without a script. Files outside docs/
that a page links to (the log, a result) are copied into the site. Notebooks become pages.
"""

from __future__ import annotations

import html
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))  # mkdocs loads a hook by path, without its folder

import notebook_pages  # noqa: E402
import site_pages  # noqa: E402

PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "LOG.md": "log.md",
    "SECURITY.md": "security.md",
}
"""Files at the repository's root that become pages, and their paths in the site."""

ELSEWHERE = {"README.md": "index.md", **PAGES}
LINK = re.compile(r"(\]\()(?![a-z]+:|#|/)([^)\s#]+)")
FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.S
)
NUMBER = re.compile(r"<td>(?=[-+\u2212]?\d[\d.,±%()·^e+\u2212 to-]{0,26}</td>)")
SPACES = (
    (
        re.compile(r"(<mi>(?:exp|log)</mi>)(?=<m(?:i|sub|sup|frac)>)"),
        r'\1<mspace width="0.167em" />',
    ),
    (
        re.compile(r"(</mi>|</msub>|</mfrac>)(?=<mi>(?:exp|log)</mi>)"),
        r'\1<mspace width="0.167em" />',
    ),
    (re.compile(r"<mo>&#x0002F;</mo>"), '<mo lspace="0" rspace="0">&#x0002F;</mo>'),
)
"""Spacing as in TeX: a thin space around function names, none around a slash."""


def on_config(config: Any) -> Any:
    """Give headings the same anchors as on the repository's host."""
    config.mdx_configs["toc"]["slugify"] = slug
    return config


def slug(heading: str, separator: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)


def on_files(files: Any, config: Any) -> Any:
    for name, place in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        place = _in_site(f"docs/notebooks/{path.name}")
        files.append(File.generated(config, place, content=notebook_pages.page(path)))
    for place in site_pages.PAGES:
        files.append(File.generated(config, place, content=site_pages.make(place)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite links that leave docs/, and rank API pages below the guides in the search."""
    if page.file.src_uri.startswith("api/"):
        page.meta.setdefault("search", {"boost": 0.3})
    home = posixpath.dirname(_in_repository(page.file.src_uri))

    def rewrite(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(home, match[2]))
        place = _in_site(target)
        if files.get_file_from_path(place) is None:
            if not (ROOT / target).is_file():
                raise PluginError(f"{page.file.src_uri} links to {match[2]}: no file {target}")
            files.append(File.generated(config, place, abs_src_path=str(ROOT / target)))
        return match[1] + posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".")

    parts = FENCE.split(markdown)  # every second one is code
    parts[::2] = [LINK.sub(rewrite, part) for part in parts[::2]]
    return "".join(parts)


def _in_repository(place: str) -> str:
    names = {page: name for name, page in PAGES.items()}
    return names.get(place, f"docs/{place}")


def _in_site(target: str) -> str:
    place = ELSEWHERE.get(target, target.removeprefix("docs/"))
    return place.replace(".ipynb", ".md")


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Convert formulas to MathML, and mark cells of numbers so that CSS keeps them on one line."""

    def to_mathml(match: re.Match[str]) -> str:
        formula = html.unescape(match["tex"]).strip()
        block = match["tag"] == "div"
        mathml = convert(formula, display="block" if block else "inline")
        if "\\" in mathml:
            raise PluginError(f"{page.file.src_uri}: cannot draw the formula {formula}")
        for pattern, replacement in SPACES:
            mathml = pattern.sub(replacement, mathml)
        return f'<div class="formula">{mathml}</div>' if block else mathml

    return NUMBER.sub('<td class="number">', FORMULA.sub(to_mathml, content))
