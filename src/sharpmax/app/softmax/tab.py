"""Controls of the Softmax tab, and the view that follows them."""

from __future__ import annotations

from typing import Any

import gradio as gr
from markupsafe import Markup

from sharpmax.app import views
from sharpmax.app.input_parsing import (
    check_choice,
    check_choices,
    check_number,
    check_size,
    check_text,
)
from sharpmax.app.softmax import charts
from sharpmax.app.softmax.rows import DRAWN, SOURCES, TYPED, make_row
from sharpmax.normalisers import NORMALISERS

NORMALISERS_SHOWN = ["softmax", "adaptive-temperature"]
INITIAL: tuple[Any, ...] = (
    "one maximum",
    "1024",
    8.0,
    1.0,
    NORMALISERS_SHOWN,
    "linear",
    "",
    "2, 1, 0, -1",
)
"""Initial values of the controls, in the order of the arguments of `render`."""

SIZES = [2**power for power in range(1, 15)]
SPREADS, TEMPERATURES = (0.0, 20.0), (0.05, 5.0)
"""The ends of the sliders."""
SCALES: tuple[charts.Scale, ...] = ("linear", "log")


def build_tab() -> None:
    """Add the tab: controls on the left, charts on the right."""
    source, items, spread, temperature, names, scale, _, text = INITIAL
    with gr.Row(equal_height=False):
        with gr.Column(scale=1, min_width=280):
            source_box = gr.Radio(list(SOURCES), value=source, label="Logits")
            pad = views.make_drawing_pad(visible=False, elem_id="softmax-pad")
            text_box = gr.Textbox(
                text, label="Logits, separated by commas or spaces", lines=3, visible=False
            )
            size_box = views.make_size_slider(SIZES, items, elem_id="softmax-size")
            spread_box = gr.Slider(
                *SPREADS, value=spread, step=0.1, label="Spread: largest minus smallest logit"
            )
            temperature_box = gr.Slider(
                *TEMPERATURES, value=temperature, step=0.05, label="Temperature"
            )
            names_box = gr.CheckboxGroup(
                list(NORMALISERS), value=list(names), label="Normalisers", elem_id="softmax-names"
            )
            scale_box = gr.Radio(list(SCALES), value=scale, label="Scale of the weights")
        with gr.Column(scale=2, min_width=300):
            view = views.make_view(render(*INITIAL), elem_id="softmax-view")
    sliders: list[Any] = [size_box, spread_box, temperature_box, names_box, scale_box]
    gr.on(
        [source_box.input, pad.input, text_box.change, *(control.input for control in sliders)],
        views.with_errors_shown(render),
        [source_box, *sliders, pad, text_box],
        view,
        trigger_mode="always_last",  # a moving slider triggers many events
        concurrency_limit=4,
        **views.EVENT,
    )
    source_box.input(
        update_visibility, source_box, [pad, text_box, size_box, spread_box], **views.EVENT
    )


def render(
    source: object,
    items: object,
    spread: object,
    temperature: object,
    names: object,
    scale: object,
    drawn: object,
    text: object,
) -> Markup:
    """Return the charts for the values of all controls, of which any may be wrong."""
    row = make_row(
        check_choice("the source of logits", source, SOURCES),
        check_size("the number of items", items, SIZES),
        check_number("the spread", spread, *SPREADS),
        check_text("the drawn curve", drawn),
        check_text("the list of logits", text),
    )
    return charts.render_row(
        row,
        check_number("the temperature", temperature, *TEMPERATURES),
        check_choices("the choice of normalisers", names, NORMALISERS),
        check_choice("the scale", scale, SCALES),
    )


def update_visibility(source: object) -> list[Any]:
    """Show the pad, the text box, and the sliders for n and spread only if the source uses them."""
    visible = (source == DRAWN, source == TYPED, source != TYPED, source != TYPED)
    return [gr.update(visible=show) for show in visible]
