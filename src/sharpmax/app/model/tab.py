"""Controls of the Model tab: compare plain with sharpened text, and scan a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

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
from sharpmax.app.model.example import load_example, render_example
from sharpmax.app.model.generation import GenerationRequest, TextPair, generate_pair, render_pair
from sharpmax.app.model.model_cache import ModelCache
from sharpmax.app.model.scan import PROMPTS, render_scans, scan_model
from sharpmax.hf.tune.calibration import TUNED, Calibration
from sharpmax.policies import Policy
from sharpmax.policy_names import POLICY_NAMES, make_policy, policy_title

MAX_JOBS = 32
"""Jobs that may use the model or wait for it at the same time; each holds a thread."""
NUMBERS, TOKENS = (1e-3, 1e6), (1, 256)
"""The smallest and largest number of a policy, and of tokens to write."""

NOTHING = "nothing"
"""The option of a scan that is not compared."""

SCAN, SHARPEN = "scan", "sharpen"
"""Kinds of jobs; each user has at most one of each."""


def build_tab(
    cache: ModelCache, model: str, calibrations: Mapping[str, Calibration] | None = None
) -> None:
    """Add the tab, with one sub-tab that asks a question and one that scans."""
    policies = ModelPolicies(dict(calibrations or {}))
    name: gr.components.Component
    if cache.allowed is None:
        label = "Model: smollm2, a folder, or a name on the hub"
        name = gr.Textbox(model, label=label, elem_id="model-name")
    else:
        name = gr.Dropdown(list(cache.allowed), value=model, label="Model", elem_id="model-name")
    with gr.Tabs():
        with gr.Tab("Ask"):
            build_ask_tab(cache, name, policies)
        with gr.Tab("Scan"):
            build_scan_tab(cache, name, policies)


def build_scan_tab(
    cache: ModelCache, name: gr.components.Component, policies: ModelPolicies
) -> None:
    """Add the controls that scan a model, also plain and sharpened."""
    gr.Markdown("How far does each head spread as the input grows, and what does it look at?")
    with gr.Row():
        choices = [(f"{prompt}: {label}", prompt) for prompt, label in PROMPTS.items()]
        prompt = gr.Dropdown(choices, value="max", label="Prompt", scale=2, min_width=260)
        lengths = gr.Textbox(
            "8, 16, 32, 64",
            label="Lengths, in numbers or tokens (empty: default)",
            scale=1,
            min_width=200,
        )
        compared = gr.Dropdown(
            [("nothing", NOTHING), *policies.choices(numbers=False)],
            value=NOTHING,
            label="Compare with",
            min_width=200,
        )
    text = gr.Textbox(label="Your text", lines=4, visible=False)
    start, stop = _start_and_stop_buttons("Scan")
    view = views.make_view(elem_id="scan-view")

    def scan(
        name: object,
        prompt: object,
        text: object,
        lengths: object,
        compared: object,
        request: gr.Request,
    ) -> Iterator[dict[str, str]]:
        def work(report: Report) -> Any:
            policy = None if compared == NOTHING else policies.find(compared, None)
            return scan_model(cache, name, prompt, text, lengths, policy, str(compared), report)

        yield from follow_job(request, SCAN, "Scanning:", work, render_scans)

    _connect(start, stop, SCAN, scan, [name, prompt, text, lengths, compared], view)
    prompt.input(lambda kind: gr.update(visible=kind == "text"), prompt, text, **views.EVENT)


def build_ask_tab(
    cache: ModelCache, name: gr.components.Component, policies: ModelPolicies
) -> None:
    """Add the controls that generate plain and sharpened text; at first they show an example."""
    gr.Markdown(
        "Ask for one code in a list. Plain attention against "
        "a calibration, which sharpens or softens each head as the input grows."
    )
    with gr.Row():
        tuned = gr.Button("Example: the calibration finds the code", min_width=200)
        paper = gr.Button("Caution: the paper's polynomial in all heads", min_width=200)
    example = load_example()
    prompt = gr.Textbox(example["prompt"], label="Prompt", lines=4, max_lines=8)
    with gr.Row():
        policy = gr.Dropdown(policies.choices(), value=TUNED, label="Policy", min_width=260)
        number = gr.Number(1.2, label="Number of the policy", visible=False, min_width=140)
        tokens = gr.Slider(
            *TOKENS, value=example["max_tokens"], step=1, label="Tokens to write", min_width=200
        )
    with gr.Accordion("Some layers or heads, chat template", open=False):
        with gr.Row():
            layers = gr.Textbox("", label="Layers, such as 0, 4-7 (empty: all)", min_width=200)
            heads = gr.Textbox("", label="Heads, such as 0-3 (empty: all)", min_width=200)
        chat = gr.Checkbox(False, label="Use the model's chat template, if it has one")
    start, stop = _start_and_stop_buttons("Write both")
    view = views.make_view(render_example(TUNED), elem_id="sharpen-view")
    for button, condition in ((tuned, TUNED), (paper, "paper")):
        _connect_example(button, condition, [prompt, policy, number, tokens, chat, view])

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
            generation, title = make_request(
                policies, prompt, policy, number, layers, heads, tokens, chat
            )
            with cache.borrow(name, report) as lent:
                return generate_pair(lent.loaded, generation, lent.report), title

        def render(result: tuple[TextPair, str]) -> Markup:
            return render_pair(*result)

        yield from follow_job(request, SHARPEN, "Writing:", work, render)

    controls = [name, prompt, policy, number, layers, heads, tokens, chat]
    _connect(start, stop, SHARPEN, sharpen, controls, view)
    views.show_number_if_taken(policy, number)


def _connect_example(button: gr.Button, condition: str, controls: list[Any]) -> None:
    """Let a button show an example, and put it into the controls."""

    def show() -> list[Any]:
        example = load_example()
        values = [example["prompt"], condition, gr.update(visible=False), example["max_tokens"]]
        return [*values, False, views.view_value(render_example(condition))]

    button.click(show, None, controls, concurrency_limit=None, **views.EVENT)


@dataclass(frozen=True)
class ModelPolicies:
    """What a user can choose to sharpen a model with."""

    calibrations: dict[str, Calibration]
    """Those of the user, by the name of their file."""

    def choices(self, *, numbers: bool = True) -> list[tuple[str, str]]:
        """Return the options of a dropdown; `numbers`: also policies that take one."""
        named = [
            (label, name)
            for label, name in views.POLICY_CHOICES
            if numbers or not POLICY_NAMES[name].takes_number
        ]
        own = [(f"{name}: your calibration", name) for name in self.calibrations]
        return [*own, ("tuned: learned for each head of this model", TUNED), *named]

    def find(self, name: object, number: object) -> Policy | Calibration | str:
        """Return what a name from the browser stands for, and any number it takes."""
        chosen = check_choice("the policy", name, [*self.calibrations, TUNED, *POLICY_NAMES])
        if chosen in self.calibrations:
            return self.calibrations[chosen]
        if chosen == TUNED:
            return TUNED
        if not POLICY_NAMES[chosen].takes_number:
            return make_policy(chosen)
        return make_policy(chosen, check_number("the policy's number", number, *NUMBERS))


def make_request(
    policies: ModelPolicies,
    prompt: object,
    policy: object,
    number: object,
    layers: object,
    heads: object,
    tokens: object,
    chat: object,
) -> tuple[GenerationRequest, str]:
    """Return what to generate, and the policy's title, from values as the browser sent them."""
    found = policies.find(policy, number)
    name = str(policy)
    request = GenerationRequest(
        check_text("the prompt", prompt),
        found,
        parse_selection("layers", layers),
        parse_selection("heads", heads),
        check_integer("the number of tokens", tokens, *TOKENS),
        check_choice("the chat box", chat, (True, False)),
    )
    if name in POLICY_NAMES:
        return request, f"the policy {policy_title(name, cast('float', number))}"
    return request, "the calibration" if name == TUNED else f"the calibration {name}"


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
