"""Controls of the Model tab: scan a model, and compare plain with sharpened text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr
from markupsafe import Markup

from sharpmax.app import views
from sharpmax.app.background_jobs import JobEnd, Report, Stopped, run_job, stop_job
from sharpmax.app.input_parsing import (
    check_choice,
    check_integer,
    check_number,
    check_text,
    parse_selection,
)
from sharpmax.app.model.generation import GenerationRequest, TextPair, generate_pair, render_pair
from sharpmax.app.model.model_cache import ModelCache
from sharpmax.app.model.scan import PROMPTS, render_scan, scan_model
from sharpmax.policy_names import POLICY_NAMES, make_policy, policy_title

EXAMPLE_PROMPT = (
    "What is the maximum in the following sequence: 17, 402, 93, 658, 231? The maximum is:"
)
MAX_JOBS = 32
"""Jobs that may use the model or wait for it at the same time; each holds a thread."""
NUMBERS, TOKENS = (1e-3, 1e6), (1, 256)
"""The smallest and largest number of a policy, and of tokens to write."""

SCAN, SHARPEN = "scan", "sharpen"
"""Kinds of jobs; each user has at most one of each."""


def build_tab(cache: ModelCache, model: str) -> None:
    """Add the tab, with one sub-tab for scanning and one for sharpening."""
    name: gr.components.Component
    if cache.allowed is None:
        label = "Model: smollm2, a folder, or a name on the hub"
        name = gr.Textbox(model, label=label, elem_id="model-name")
    else:
        name = gr.Dropdown(list(cache.allowed), value=model, label="Model", elem_id="model-name")
    with gr.Tabs():
        with gr.Tab("Scan"):
            build_scan_tab(cache, name)
        with gr.Tab("Sharpen"):
            build_sharpen_tab(cache, name)


def build_scan_tab(cache: ModelCache, name: gr.components.Component) -> None:
    """Add the controls that scan a model."""
    gr.Markdown("How far does each head spread as the input grows?")
    with gr.Row():
        choices = [(f"{prompt}: {label}", prompt) for prompt, label in PROMPTS.items()]
        prompt = gr.Dropdown(choices, value="max", label="Prompt", scale=2, min_width=260)
        lengths = gr.Textbox(
            "8, 16, 32, 64",
            label="Lengths, in numbers or tokens (empty: default)",
            scale=1,
            min_width=200,
        )
    text = gr.Textbox(label="Your text", lines=4, visible=False)
    start, stop = _start_and_stop_buttons("Scan")
    view = views.make_view(elem_id="scan-view")

    def scan(
        name: object, prompt: object, text: object, lengths: object, request: gr.Request
    ) -> Iterator[dict[str, str]]:
        def work(report: Report) -> Any:
            return scan_model(cache, name, prompt, text, lengths, report)

        yield from follow_job(request, SCAN, "Scanning:", work, render_scan)

    _connect(start, stop, SCAN, scan, [name, prompt, text, lengths], view)
    prompt.input(lambda kind: gr.update(visible=kind == "text"), prompt, text, **views.EVENT)


def build_sharpen_tab(cache: ModelCache, name: gr.components.Component) -> None:
    """Add the controls that generate plain and sharpened text."""
    gr.Markdown("What does the model write, plain and sharpened?")
    prompt = gr.Textbox(EXAMPLE_PROMPT, label="Prompt", lines=3)
    with gr.Row():
        policy = gr.Dropdown(views.POLICY_CHOICES, value="paper", label="Policy", min_width=260)
        number = gr.Number(1.2, label="Number of the policy", visible=False, min_width=140)
        tokens = gr.Slider(*TOKENS, value=24, step=1, label="Tokens to write", min_width=200)
    with gr.Row():
        layers = gr.Textbox("", label="Layers, such as 0, 4-7 (empty: all)", min_width=200)
        heads = gr.Textbox("", label="Heads, such as 0-3 (empty: all)", min_width=200)
    chat = gr.Checkbox(True, label="Use the model's chat template, if it has one")
    start, stop = _start_and_stop_buttons("Write both")
    view = views.make_view(elem_id="sharpen-view")

    def sharpen(
        name: object,
        prompt: object,
        policy: object,
        number: object,
        layers: object,
        heads: object,
        tokens: object,
        chat: object,
        request: gr.Request,
    ) -> Iterator[dict[str, str]]:
        def work(report: Report) -> tuple[TextPair, str]:
            generation, title = make_request(prompt, policy, number, layers, heads, tokens, chat)
            with cache.borrow(name, report) as lent:
                return generate_pair(lent.loaded, generation, lent.report), title

        def render(result: tuple[TextPair, str]) -> Markup:
            return render_pair(*result)

        yield from follow_job(request, SHARPEN, "Writing:", work, render)

    controls = [name, prompt, policy, number, layers, heads, tokens, chat]
    _connect(start, stop, SHARPEN, sharpen, controls, view)
    views.show_number_if_taken(policy, number)


def make_request(
    prompt: object,
    policy: object,
    number: object,
    layers: object,
    heads: object,
    tokens: object,
    chat: object,
) -> tuple[GenerationRequest, str]:
    """Return what to generate, and the policy's title, from values as the browser sent them."""
    name = check_choice("the policy", policy, POLICY_NAMES)
    value = (
        check_number("the policy's number", number, *NUMBERS)
        if POLICY_NAMES[name].takes_number
        else None
    )
    request = GenerationRequest(
        check_text("the prompt", prompt),
        make_policy(name, value),
        parse_selection("layers", layers),
        parse_selection("heads", heads),
        check_integer("the number of tokens", tokens, *TOKENS),
        check_choice("the chat box", chat, (True, False)),
    )
    return request, policy_title(name, value)


def follow_job(
    request: gr.Request,
    kind: str,
    description: str,
    work: Callable[[Report], Any],
    render: Callable[[Any], Markup],
) -> Iterator[dict[str, str]]:
    """Run a job and yield what the page shows: its progress, then its value or its error."""
    yield views.view_value(views.progress_bar(description, 0.0))
    for update in run_job(_job_key(request, kind), work):
        if not isinstance(update, JobEnd):
            yield views.view_value(views.progress_bar(description, update))
        elif update.error is None:
            yield views.view_value(render(update.value))
        else:
            yield views.view_value(explain(update.error))


def explain(error: Exception) -> Markup:
    """Return one sentence on how a job ended."""
    return views.message("Stopped.") if isinstance(error, Stopped) else views.explain_error(error)


def stop_all_jobs(request: gr.Request) -> None:
    """Stop the jobs of a user who has closed the page."""
    for kind in (SCAN, SHARPEN):
        stop_job(_job_key(request, kind))


def _job_key(request: gr.Request, kind: str) -> str:
    return f"{request.session_hash} {kind}"


def _start_and_stop_buttons(label: str) -> tuple[gr.Button, gr.Button]:
    with gr.Row():
        start = gr.Button(label, variant="primary", min_width=120)
        return start, gr.Button("Stop", min_width=120)


def _connect(
    start: gr.Button,
    stop: gr.Button,
    kind: str,
    handler: Callable[..., Any],
    controls: list[Any],
    view: gr.HTML,
) -> None:
    """Let the buttons start and stop a job; starting again ends the earlier job."""

    def stop_this_job(request: gr.Request) -> None:
        stop_job(_job_key(request, kind))

    start.click(
        handler,
        controls,
        view,
        trigger_mode="multiple",
        concurrency_limit=MAX_JOBS,
        **views.EVENT,
    )
    stop.click(stop_this_job, None, None, concurrency_limit=None, **views.EVENT)
