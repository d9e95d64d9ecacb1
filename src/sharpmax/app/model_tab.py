"""The third tab: scan a language model, look at its heads, and try what sharpening does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr
from markupsafe import Markup

from sharpmax._errors import UserError
from sharpmax.app import policies, runs, scanning, typed, views, writing
from sharpmax.app.runs import Ended, Stopped, Tell
from sharpmax.app.shelf import Shelf

PROMPT = "What is the maximum in the following sequence: 17, 402, 93, 658, 231? The maximum is:"
AT_ONCE = 8
"""Runs that may wait for the model or use it."""


def tab(shelf: Shelf, model: str) -> None:
    name: gr.components.Component
    if shelf.only is None:
        label = "Model: smollm2, a folder, or a name on the hub"
        name = gr.Textbox(model, label=label, elem_id="model-name")
    else:
        name = gr.Dropdown(list(shelf.only), value=model, label="Model", elem_id="model-name")
    with gr.Tabs():
        with gr.Tab("Scan"):
            scan_part(shelf, name)
        with gr.Tab("Sharpen"):
            sharpen_part(shelf, name)


def scan_part(shelf: Shelf, name: gr.components.Component) -> None:
    gr.Markdown("How far does each head spread as the input grows?")
    with gr.Row():
        choices = [(f"{one}: {what}", one) for one, what in scanning.PROMPTS.items()]
        prompt = gr.Dropdown(choices, value="max", label="Prompt", scale=2, min_width=260)
        lengths = gr.Textbox(
            "8, 16, 32, 64",
            label="Lengths: numbers or tokens (none: the usual)",
            scale=1,
            min_width=200,
        )
    text = gr.Textbox(label="Your text", lines=4, visible=False)
    with gr.Row():
        start = gr.Button("Scan", variant="primary", min_width=120)
        halt = gr.Button("Stop", min_width=120)
    view = views.view(elem_id="scan-view")

    def scanned(
        name: str, prompt: str, text: str, lengths: str, request: gr.Request
    ) -> Iterator[dict[str, str]]:
        def work(tell: Tell) -> Any:
            return scanning.run(shelf, name, prompt, text, lengths, tell)

        yield from told(request, "scan", "Scanning:", work, scanning.html)

    _long(start, scanned, [name, prompt, text, lengths], view)
    _stopping(halt, "scan")
    prompt.input(
        lambda kind: gr.update(visible=kind == "text"),
        prompt,
        text,
        show_progress="hidden",
        api_visibility="private",
    )


def sharpen_part(shelf: Shelf, name: gr.components.Component) -> None:
    gr.Markdown("What does the model write, plain and sharpened?")
    prompt = gr.Textbox(PROMPT, label="Prompt", lines=3)
    with gr.Row():
        policy = gr.Dropdown(policies.CHOICES, value="paper", label="Policy", min_width=260)
        number = gr.Number(1.2, label="Number of the policy", visible=False, min_width=140)
        tokens = gr.Slider(1, 256, value=24, step=1, label="Tokens to write", min_width=200)
    with gr.Row():
        layers = gr.Textbox("", label="Layers, such as 0, 4-7 (none: all)", min_width=200)
        heads = gr.Textbox("", label="Heads, such as 0-3 (none: all)", min_width=200)
    chat = gr.Checkbox(True, label="As a message, if the model has a format for chats")
    with gr.Row():
        start = gr.Button("Write both", variant="primary", min_width=120)
        halt = gr.Button("Stop", min_width=120)
    view = views.view(elem_id="sharpen-view")

    def sharpened(
        name: str,
        prompt: str,
        policy: str,
        number: float | None,
        layers: str,
        heads: str,
        tokens: float,
        chat: bool,
        request: gr.Request,
    ) -> Iterator[dict[str, str]]:
        def work(tell: Tell) -> writing.Written:
            asked = writing.Asked(
                prompt,
                policies.policy_of(policy, number),
                typed.whole_numbers("layers", layers),
                typed.whole_numbers("heads", heads),
                int(tokens),
                chat,
            )
            with shelf.taken(name, tell) as loaded:
                return writing.write(loaded, asked, tell)

        def shown(written: writing.Written) -> Markup:
            return writing.html(written, policies.told(policy, number))

        yield from told(request, "sharpen", "Writing:", work, shown)

    _long(start, sharpened, [name, prompt, policy, number, layers, heads, tokens, chat], view)
    _stopping(halt, "sharpen")
    policy.input(
        lambda name: gr.update(visible=name in policies.NUMBERED),
        policy,
        number,
        show_progress="hidden",
        api_visibility="private",
    )


def told(
    request: gr.Request,
    part: str,
    doing: str,
    work: Callable[[Tell], Any],
    shown: Callable[[Any], Markup],
) -> Iterator[dict[str, str]]:
    """A run as the page shows it: how far it is, then what it found or what went wrong."""
    yield views.shown(views.progress(doing, 0.0))
    for news in runs.follow(_key(request, part), work):
        if not isinstance(news, Ended):
            yield views.shown(views.progress(doing, news))
        elif news.error is None:
            yield views.shown(shown(news.value))
        else:
            yield views.shown(sentence(news.error))


def sentence(error: Exception) -> Markup:
    """What went wrong, as one sentence."""
    if isinstance(error, Stopped):
        return views.said("Stopped.")
    text = " ".join(str(error).split())
    if isinstance(error, (UserError, NotImplementedError)):
        return views.problem(text)
    return views.problem(f"This failed: {type(error).__name__}: {text or 'no more is known'}")


def _key(request: gr.Request, part: str) -> str:
    return f"{request.session_hash} {part}"


def _long(button: gr.Button, handler: Callable[..., Any], inputs: list[Any], view: gr.HTML) -> None:
    """A run of its own for each press; pressed again, the earlier one ends."""
    button.click(
        handler,
        inputs,
        view,
        trigger_mode="multiple",
        show_progress="hidden",
        concurrency_limit=AT_ONCE,
        api_visibility="private",
    )


def _stopping(button: gr.Button, part: str) -> None:
    def stop(request: gr.Request) -> None:
        runs.stop(_key(request, part))

    button.click(
        stop, None, None, show_progress="hidden", concurrency_limit=None, api_visibility="private"
    )


def gone(request: gr.Request) -> None:
    """The page was closed: nobody wants its runs any more."""
    for part in ("scan", "sharpen"):
        runs.stop(_key(request, part))
