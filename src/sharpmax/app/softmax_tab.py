"""The first tab: a row of logits, what normalisers make of it, and what theory allows."""

from __future__ import annotations

from typing import Any

import gradio as gr
from markupsafe import Markup

from sharpmax.app import rows, views, weights
from sharpmax.app.rows import DRAWN, SOURCES, TYPED
from sharpmax.normalisers import NORMALISERS

CHOSEN = ["softmax", "adaptive-temperature"]
FIRST: tuple[Any, ...] = ("uniform", 8, 8.0, 1.0, CHOSEN, "linear", "", "2, 1, 0, -1")
"""What the tab begins with, in the order of its controls."""


def tab() -> None:
    """Controls at the left, what follows from them at the right."""
    source, power, spread, temperature, names, scale, _, text = FIRST
    with gr.Row(equal_height=False):
        with gr.Column(scale=1, min_width=280):
            source_box = gr.Radio(list(SOURCES), value=source, label="Logits")
            pad = views.pad(visible=False, elem_id="softmax-pad")
            text_box = gr.Textbox(
                text, label="Logits, with commas or spaces between them", lines=3, visible=False
            )
            power_box = gr.Slider(
                1, 14, power, step=1, label="Items n, as a power of two (14 is 16,384)"
            )
            spread_box = gr.Slider(
                0, 20, value=spread, step=0.1, label="Spread: largest minus smallest logit"
            )
            temperature_box = gr.Slider(0.05, 5, value=temperature, step=0.05, label="Temperature")
            names_box = gr.CheckboxGroup(
                list(NORMALISERS), value=list(names), label="Normalisers", elem_id="softmax-names"
            )
            scale_box = gr.Radio(["linear", "log"], value=scale, label="Scale of the weights")
        with gr.Column(scale=2, min_width=300):
            view = views.view(made(*FIRST), elem_id="softmax-view")
    moved: list[Any] = [power_box, spread_box, temperature_box, names_box, scale_box]
    inputs = [source_box, *moved, pad, text_box]
    # A slider asks for many rows on its way: the last is the one to see.
    gr.on(
        [source_box.input, pad.input, text_box.change, *(one.input for one in moved)],
        views.explained(made),
        inputs,
        view,
        trigger_mode="always_last",
        show_progress="hidden",
        concurrency_limit=None,
        api_visibility="private",
    )
    source_box.input(
        fitting,
        source_box,
        [pad, text_box, power_box, spread_box],
        show_progress="hidden",
        api_visibility="private",
    )


def made(
    source: str,
    power: float,
    spread: float,
    temperature: float,
    names: list[str],
    scale: weights.Scale,
    drawn: str | None,
    text: str,
) -> Markup:
    row = rows.row(source, 2 ** int(power), spread, drawn, text)
    return weights.html(row, temperature, names, scale)


def fitting(source: str) -> list[Any]:
    """Which controls say something about this source."""
    shown = (source == DRAWN, source == TYPED, source != TYPED, source != TYPED)
    return [gr.update(visible=one) for one in shown]
