"""The second tab: a trained head of the paper's experiment, on sets far larger than in training."""

from __future__ import annotations

from typing import Any

import gradio as gr
from markupsafe import Markup

from sharpmax.app import maps, policies, retrieval, views

FIRST = (10, 0, "paper", 2.0)
"""What the tab begins with, in the order of its controls: the power, the head, the policy and its
number."""


def tab() -> None:
    power, seed, name, number = FIRST
    with gr.Row(equal_height=False):
        with gr.Column(scale=1, min_width=280):
            power_box = gr.Slider(
                4,
                14,
                value=power,
                step=1,
                label="Items n, as a power of two (14 is 16,384)",
            )
            seed_box = gr.Dropdown(
                [(f"seed {one}", one) for one in retrieval.trained().seeds],
                value=seed,
                label="Trained head",
            )
            policy_box = gr.Dropdown(policies.CHOICES, value=name, label="Policy, beside softmax")
            number_box = gr.Slider(
                1, 32, value=number, step=0.1, label="Number of the policy", visible=False
            )
        with gr.Column(scale=2, min_width=300):
            view = views.view(made(*FIRST), elem_id="retrieval-view")
    inputs: list[Any] = [power_box, seed_box, policy_box, number_box]
    gr.on(
        [one.input for one in inputs],
        views.explained(made),
        inputs,
        view,
        trigger_mode="always_last",
        show_progress="hidden",
        concurrency_limit=2,
        api_visibility="private",
    )
    policy_box.input(
        lambda name: gr.update(visible=name in policies.NUMBERED),
        policy_box,
        number_box,
        show_progress="hidden",
        api_visibility="private",
    )


def made(power: float, seed: int, name: str, number: float | None) -> Markup:
    return maps.html(int(seed), 2 ** int(power), name, number)
