"""Pages of the site that show the product: two tabs of the explorer, and the report of a scan.

Each is one HTML file with everything in it. The tabs are drawn for every n beforehand, so that the
slider and the Play button work without a server.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from markupsafe import Markup

from sharpmax import report
from sharpmax.app.retrieval import charts as retrieval_charts
from sharpmax.app.retrieval import tab as retrieval_tab
from sharpmax.app.softmax import tab as softmax_tab
from sharpmax.report.renderers import html

ROOT = Path(__file__).parents[1]
SAMPLE = [
    ROOT / "results" / "smollm2" / "evaluate_lookup.json",
    ROOT / "results" / "sample" / "plain.json",
    ROOT / "results" / "sample" / "tuned.json",
]
"""What the sample report shows: answers, then the heads without and with the calibration."""

PAGE = Markup("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src {allowed}; \
style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}: sharpmax</title>
<link rel="icon" href="data:,">
<style>
{style}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="said">{text} In the <a href="../app.html">explorer</a>, which runs on your machine, you
can change everything else.</p>
<div class="sharpmax-view"><div class="palette">
<div class="size"><label>Items n: <output></output><input type="range" min="0" step="1"></label>
<button type="button" title="Grow n step by step">Play</button></div>
<div class="palette" id="view"></div>
</div></div>
</main>
<script type="application/json" id="pages">{pages}</script>
<script>{script}</script>
</body>
</html>
""")

SCHEME = Markup(".sharpmax-view { color-scheme: light dark; }\n")
"""The explorer has a switch of its own between light and dark; these pages follow the system."""

START = """
const pages = JSON.parse(document.getElementById("pages").textContent);
const view = document.getElementById("view");
const show = (size) => window.sharpmaxShow(view, pages[size]);
const sizes = Object.keys(pages).map(Number);
window.sharpmaxSize(document.querySelector(".size"), sizes, FIRST, show);
show(FIRST);
"""


def grown_page(
    title: str, text: str, sizes: Sequence[int], first: str, render: Callable[[str], Markup]
) -> str:
    """Return a page with a slider over sizes; each size is rendered beforehand."""
    assets = resources.files("sharpmax.app") / "assets"
    script = html.script((assets / "live.js").read_text("utf-8") + START.replace("FIRST", first))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    pages = {str(size): str(render(str(size))) for size in sizes}
    return str(
        PAGE.format(
            title=title,
            text=text,
            allowed=Markup(f"'sha256-{digest}'"),
            style=html.style() + Markup((assets / "app.css").read_text("utf-8")) + SCHEME,
            pages=html.embed_json(pages),
            script=script,
        )
    )


def softmax_page() -> str:
    """Return the Softmax tab, with its first settings at every n."""
    source, _, *others = softmax_tab.INITIAL
    return grown_page(
        "Softmax as its input grows",
        "One item has a larger logit than all others, by 8. Press Play to add items.",
        softmax_tab.SIZES,
        softmax_tab.INITIAL[1],
        lambda size: softmax_tab.render(source, size, *others),
    )


def retrieval_page() -> str:
    """Return the Max retrieval tab, with its first settings at every n."""
    first, *others = retrieval_tab.INITIAL
    return grown_page(
        "A trained head as its set grows",
        "A head that was trained to find the maximum of 5 to 16 items, on larger and larger sets, "
        "with softmax and with the paper's adaptive temperature. Press Play to grow the sets.",
        retrieval_charts.SIZES,
        first,
        lambda size: retrieval_tab.render(size, *others),
    )


def sample_report() -> str:
    """Return the report of an evaluation and of two scans, which it compares."""
    return report.render([report.load(path) for path in SAMPLE])


PAGES: dict[str, Callable[[], str]] = {
    "see/softmax.html": softmax_page,
    "see/max_retrieval.html": retrieval_page,
    "see/report.html": sample_report,
}
"""By their place in the site."""


@cache
def make(place: str) -> str:
    """Return the page at a place of the site."""
    return PAGES[place]()
