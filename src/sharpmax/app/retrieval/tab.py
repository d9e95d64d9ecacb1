"""Controls of the Max retrieval tab, and the view that follows them."""

from __future__ import annotations

from typing import Any

import gradio as gr
from markupsafe import Markup

from sharpmax.app import views
from sharpmax.app.input_parsing import check_choice, check_number, check_size
from sharpmax.app.retrieval import charts
from sharpmax.app.retrieval.head import load_heads
from sharpmax.policy_names import POLICY_NAMES

INITIAL = ("1024", 0, "paper", 2.0)
"""Initial values of the controls, in the order of the arguments of `render`."""

NUMBERS = (1.0, 32.0)
"""The ends of the slider for a policy's number."""


def build_tab() -> None:
    """Add the tab: controls on the left, maps on the right."""
    items, seed, policy, number = INITIAL
    with gr.Row(equal_height=False):
        with gr.Column(scale=1, min_width=280):
            size_box = views.make_size_slider(charts.SIZES, items, elem_id="retrieval-size")
            seed_box = gr.Dropdown(
                [(f"seed {seed}", seed) for seed in load_heads().seeds],
                value=seed,
                label="Trained head",
            )
            policy_box = gr.Dropdown(
                views.POLICY_CHOICES, value=policy, label="Policy, compared with softmax"
            )
            number_box = gr.Slider(
                *NUMBERS, value=number, step=0.1, label="Number of the policy", visible=False
            )
        with gr.Column(scale=2, min_width=300):
            view = views.make_view(render(*INITIAL), elem_id="retrieval-view")
    controls: list[Any] = [size_box, seed_box, policy_box, number_box]
    gr.on(
        [control.input for control in controls],
        views.with_errors_shown(render),
        controls,
        view,
        trigger_mode="always_last",
        concurrency_limit=2,
        **views.EVENT,
    )
    views.show_number_if_taken(policy_box, number_box)


def render(items: object, seed: object, policy: object, number: object) -> Markup:
    """Return the maps and the table for the values of all controls, of which any may be wrong."""
    name = check_choice("the policy", policy, POLICY_NAMES)
    return charts.render_retrieval(
        check_choice("the trained head", seed, load_heads().seeds),
        check_size("the number of items", items, charts.SIZES),
        name,
        check_number("the policy's number", number, *NUMBERS)
        if POLICY_NAMES[name].takes_number
        else None,
    )
