"""Parts of the page: views that show our own markup and charts, and the controls around them.

gradio inserts the markup of a component unchanged. So only markup of ours, in which everything from
outside is escaped, may reach it. gradio also patches old markup into new, element by element, which
would mix two charts. So each view is replaced as a whole, by our own script.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import resources
from typing import Any

import gradio as gr
from markupsafe import Markup

from sharpmax._errors import UserError
from sharpmax.policy_names import POLICY_NAMES
from sharpmax.report.renderers import html

logger = logging.getLogger(__name__)

EVENT: dict[str, Any] = {
    "show_progress": "hidden",
    "api_visibility": "private",
    "preprocess": False,
}
"""Options of all events: no spinner of gradio's, no entry in its public API, and values as they
were sent, because gradio's own checks fail without a word on the page."""

POLICY_CHOICES = [(f"{name}: {policy.label}", name) for name, policy in POLICY_NAMES.items()]
"""Options of a dropdown."""

VIEW = '<div class="sharpmax-view"><div class="palette"></div></div>'
SHOW_VIEW = """
const view = element.querySelector(".palette");
const show = () => window.sharpmaxShow(view, props.value?.html);
watch("value", show);
show();
"""

DRAWING_PAD = """<div class="sharpmax-view"><div class="palette"><svg class="pad"
viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="Field to draw a curve in">
<polyline points=""/></svg></div></div>"""
DRAW = """
window.sharpmaxPad(element.querySelector(".pad"), props.value, (text) => {
  props.value = text;
  trigger("input");
});
"""


SIZE_SLIDER = """<div class="sharpmax-view"><div class="palette"><div class="size">
<label>Items n: <output></output><input type="range" min="0" step="1"></label>
<button type="button" title="Grow n step by step">Play</button></div></div></div>"""
SLIDE = """
window.sharpmaxSize(element.querySelector(".size"), SIZES, props.value, (text) => {
  props.value = text;
  trigger("input");
});
"""


def make_size_slider(sizes: Sequence[int], value: str, **options: Any) -> gr.HTML:
    """Return a slider over sizes that shows the number itself, with a button that grows it."""
    return gr.HTML(
        value=value,
        html_template=SIZE_SLIDER,
        js_on_load=SLIDE.replace("SIZES", str(list(sizes))),
        apply_default_css=False,
        **options,
    )


def make_view(value: Markup | None = None, **options: Any) -> gr.HTML:
    """Return a component that shows our markup."""
    return gr.HTML(
        value=None if value is None else view_value(value),
        html_template=VIEW,
        js_on_load=SHOW_VIEW,
        apply_default_css=False,
        **options,
    )


def view_value(markup: Markup) -> dict[str, str]:
    """Return the value of a view; not a string, which gradio would insert as markup itself."""
    return {"html": str(markup)}


def make_drawing_pad(**options: Any) -> gr.HTML:
    """Return a field to draw a curve in; its value is a list of heights as text."""
    return gr.HTML(
        value="", html_template=DRAWING_PAD, js_on_load=DRAW, apply_default_css=False, **options
    )


def show_number_if_taken(policy: gr.Dropdown, number: gr.components.Component) -> None:
    """Show the control for a policy's number only while the chosen policy takes one."""

    def update_visibility(name: object) -> Any:
        return gr.update(visible=name in [p.name for p in POLICY_NAMES.values() if p.takes_number])

    policy.input(update_visibility, policy, number, **EVENT)


def page_head() -> str:
    """Return style and script of the page: those of the reports, and our additions."""
    # The report's style is for a whole page; here it holds inside a view only.
    style = f".sharpmax-view {{\n{html.style()}\n}}\n{_read_asset('app.css')}"
    return f"<style>{style}</style>\n<script>{html.script(_read_asset('live.js'))}</script>"


def error_message(text: object) -> Markup:
    return Markup('<p class="problem" role="alert">{}</p>').format(str(text))


def message(text: str) -> Markup:
    return Markup('<p class="said">{}</p>').format(text)


def progress_bar(description: str, share: float) -> Markup:
    """Return a progress bar with its description and percentage."""
    return Markup(
        '<p class="said">{} {:.0f} %</p>'
        '<div class="done" role="progressbar" aria-valuenow="{:.0f}"><span style="width: {:.1f}%">'
        "</span></div>"
    ).format(description, 100 * share, 100 * share, 100 * share)


def iframe(document: str, title: str) -> Markup:
    """Return a frame with a whole HTML page, which can run its script but not reach ours."""
    return Markup(
        '<iframe class="sheet" sandbox="allow-scripts" title="{}" srcdoc="{}"></iframe>'
    ).format(title, str.__str__(document))  # escape it even if it is marked as safe


def with_errors_shown(render: Callable[..., Markup]) -> Callable[..., dict[str, str]]:
    """Wrap a function that renders markup, so that an error is shown in the view instead."""

    @wraps(render)
    def render_or_explain(*values: Any) -> dict[str, str]:
        try:
            return view_value(render(*values))
        except Exception as error:  # unexpected errors must reach the page too
            return view_value(explain_error(error))

    return render_or_explain


def explain_error(error: Exception) -> Markup:
    """Return an error as one sentence for the page; unexpected ones go to the terminal as well."""
    text = " ".join(str(error).split())
    if isinstance(error, (UserError, NotImplementedError)):
        return error_message(text)
    logger.error("unexpected error in the explorer", exc_info=error)
    description = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return error_message(f"Unexpected error: {description}")


def _read_asset(name: str) -> str:
    return (resources.files("sharpmax.app") / "assets" / name).read_text("utf-8")
