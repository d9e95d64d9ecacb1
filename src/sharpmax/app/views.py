"""What gradio shows of ours: parts of the page with the charts of the reports, in their colours.

gradio puts the markup of a component into the page as it is, so nothing but markup of ours, in
which whatever came from outside is escaped, may get there. It also patches old markup into new,
element by element, which would mix two charts: so each view is replaced as a whole, by a script of
ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import resources
from typing import Any

import gradio as gr
from markupsafe import Markup

from sharpmax._errors import UserError
from sharpmax.report.renderers import html

VIEW = '<div class="sharpmax-view"><div class="palette"></div></div>'
SHOW = """
const view = element.querySelector(".palette");
const show = () => window.sharpmaxShow(view, props.value?.html);
watch("value", show);
show();
"""

PAD = """<div class="sharpmax-view"><div class="palette"><svg class="pad" viewBox="0 0 100 100"
preserveAspectRatio="none" role="img" aria-label="Field to draw a curve in">
<polyline points=""/></svg></div></div>"""
DRAW = """
window.sharpmaxPad(element.querySelector(".pad"), props.value, (text) => {
  props.value = text;
  trigger("input");
});
"""


def view(value: Markup | None = None, **options: Any) -> gr.HTML:
    """A part of the page that shows markup of ours."""
    return gr.HTML(
        value=None if value is None else shown(value),
        html_template=VIEW,
        js_on_load=SHOW,
        apply_default_css=False,
        **options,
    )


def shown(markup: Markup) -> dict[str, str]:
    """The value of a view. Not a text, which gradio would take for markup to put in by itself."""
    return {"html": str(markup)}


def pad(**options: Any) -> gr.HTML:
    """A field to draw a curve in; its value is the heights."""
    return gr.HTML(value="", html_template=PAD, js_on_load=DRAW, apply_default_css=False, **options)


def head() -> str:
    """Style and script of the page: those of the reports, and what changes them."""
    # Of `:root` and `body` of a report's page there is nothing inside a view.
    style = f".sharpmax-view {{\n{html.style()}\n}}\n{_asset('app.css')}"
    return f"<style>{style}</style>\n<script>{html.script(_asset('live.js'))}</script>"


def problem(text: object) -> Markup:
    """One sentence on what is wrong."""
    return Markup('<p class="problem" role="alert">{}</p>').format(str(text))


def said(text: str) -> Markup:
    return Markup('<p class="said">{}</p>').format(text)


def progress(what: str, share: float) -> Markup:
    """How far something has come."""
    return Markup(
        '<p class="said">{} {:.0f} %</p>'
        '<div class="done" role="progressbar" aria-valuenow="{:.0f}"><span style="width: {:.1f}%">'
        "</span></div>"
    ).format(what, 100 * share, 100 * share, 100 * share)


def sheet(document: str, title: str) -> Markup:
    """A page of its own inside the page: it may run its one script, and reach nothing around it."""
    return Markup(
        '<iframe class="sheet" sandbox="allow-scripts" title="{}" srcdoc="{}"></iframe>'
    ).format(title, str.__str__(document))  # a text, also if it calls itself markup


def explained(make: Callable[..., Markup]) -> Callable[..., dict[str, str]]:
    """What `make` makes, or the sentence on why it cannot be made."""

    @wraps(make)
    def safe(*values: Any) -> dict[str, str]:
        try:
            return shown(make(*values))
        except UserError as error:
            return shown(problem(error))

    return safe


def _asset(name: str) -> str:
    return (resources.files("sharpmax.app") / "assets" / name).read_text("utf-8")
