"""The page with its three tabs, and the server for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import gradio as gr

from sharpmax.app import views
from sharpmax.app.model import tab as model_tab
from sharpmax.app.model.model_cache import ModelCache
from sharpmax.app.retrieval import tab as retrieval_tab
from sharpmax.app.softmax import tab as softmax_tab
from sharpmax.hf.loading.loader import DEFAULT

HOST = "127.0.0.1"

INTRODUCTION = (
    "# sharpmax\n"
    "Softmax attention spreads thinner as inputs grow "
    "([arXiv 2410.01104](https://arxiv.org/abs/2410.01104)). See it happen, and try what helps."
)


def build(model: str = DEFAULT, *, any_model: bool = True) -> gr.Blocks:
    """Build the page of the explorer.

    Args:
        model: The model that the third tab starts with: smollm2, a folder, or a name on the Hugging
            Face hub. It is loaded when it is first used.
        any_model: Whether users can load other models. Switch it off where strangers can reach the
            page.

    Returns:
        The page, to be passed to `launch`.

    Examples:
        >>> from sharpmax.app import build, launch
        >>> launch(build("smollm2"))
    """
    return _run_in_event_loop(lambda: _build(model, any_model))


def _build(model: str, any_model: bool) -> gr.Blocks:
    cache = ModelCache(None if any_model else (model,))
    with gr.Blocks(analytics_enabled=False, title="sharpmax") as page:
        gr.Markdown(INTRODUCTION)
        with gr.Tabs():
            with gr.Tab("Softmax"):
                softmax_tab.build_tab()
            with gr.Tab("Max retrieval"):
                retrieval_tab.build_tab()
            with gr.Tab("Model"):
                model_tab.build_tab(cache, model)
        page.unload(model_tab.stop_all_jobs)
    return page


def launch(
    page: gr.Blocks,
    *,
    host: str = HOST,
    port: int | None = None,
    open_browser: bool = False,
    wait: bool = True,
) -> str:
    """Serve the page.

    Args:
        page: What `build` returned.
        host: Address to listen on. The default can be reached from this machine only.
        port: Port to listen on; None takes the first free port from 7860.
        open_browser: Whether to open the page in the browser.
        wait: Whether to return only after the server has stopped.

    Returns:
        The address of the page, such as `http://127.0.0.1:7860/`.

    Raises:
        OSError: The port is in use.
    """
    settings: dict[str, Any] = {"server_name": host, "server_port": port, "inbrowser": open_browser}
    _, address, _ = _run_in_event_loop(
        lambda: page.launch(prevent_thread_lock=True, **settings, **_offline_settings())
    )
    if wait:
        page.block_thread()
    return str(address)


def _run_in_event_loop(work: Callable[[], Any]) -> Any:
    """Run gradio's setup inside an event loop.

    Without a running loop gradio creates one for each of its locks, and never closes them.
    """

    async def run() -> Any:
        return work()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run())
    return work()


def _offline_settings() -> dict[str, Any]:
    """Return settings that keep gradio from contacting other machines, and our look."""
    fonts = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif"]
    code_fonts = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
    return {
        "share": False,
        "ssr_mode": False,
        "mcp_server": False,
        "pwa": False,
        "run_history": False,
        "enable_monitoring": False,
        "footer_links": ["settings"],
        "theme": gr.themes.Base(primary_hue="blue", font=fonts, font_mono=code_fonts),
        "head": views.page_head(),
        "quiet": True,
    }
