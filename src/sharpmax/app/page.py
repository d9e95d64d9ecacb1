"""The page as a whole: three tabs, and a server that only this machine can ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import gradio as gr

from sharpmax.app import model_tab, retrieval_tab, softmax_tab, views
from sharpmax.app.shelf import Shelf
from sharpmax.hf.loading.loader import DEFAULT

HOST = "127.0.0.1"

INTRODUCTION = (
    "# sharpmax\n"
    "The more items there are, the thinner softmax spreads its weight, whatever a model has "
    "learned ([arXiv 2410.01104](https://arxiv.org/abs/2410.01104)). See it happen, and try what "
    "helps."
)


def build(model: str = DEFAULT, *, any_model: bool = True) -> gr.Blocks:
    """The page. Without `any_model` no other model can be loaded: for a page that strangers see."""
    return _inside_a_loop(lambda: _built(model, any_model))


def _built(model: str, any_model: bool) -> gr.Blocks:
    shelf = Shelf(None if any_model else (model,))
    with gr.Blocks(analytics_enabled=False, title="sharpmax") as page:
        gr.Markdown(INTRODUCTION)
        with gr.Tabs():
            with gr.Tab("Softmax"):
                softmax_tab.tab()
            with gr.Tab("Max retrieval"):
                retrieval_tab.tab()
            with gr.Tab("Model"):
                model_tab.tab(shelf, model)
        page.unload(model_tab.gone)
    return page


def launch(
    page: gr.Blocks,
    *,
    host: str = HOST,
    port: int | None = None,
    open_browser: bool = False,
    wait: bool = True,
) -> str:
    """Serve the page and return its address; with `wait`, only once it has been stopped."""
    settings: dict[str, Any] = {"server_name": host, "server_port": port, "inbrowser": open_browser}
    _, address, _ = _inside_a_loop(
        lambda: page.launch(prevent_thread_lock=True, **settings, **_settings())
    )
    if wait:
        page.block_thread()
    return str(address)


def _inside_a_loop(work: Callable[[], Any]) -> Any:
    """Where no event loop runs gradio makes one for each of its locks, and leaves them all open."""

    async def inside() -> Any:
        return work()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(inside())
    return work()


def _settings() -> dict[str, Any]:
    """Nothing that asks another machine: no tunnel, no fonts from elsewhere, no second server."""
    fonts = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif"]
    code = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
    return {
        "share": False,
        "ssr_mode": False,
        "mcp_server": False,
        "pwa": False,
        "run_history": False,
        "enable_monitoring": False,
        "footer_links": ["settings"],
        "theme": gr.themes.Base(primary_hue="blue", font=fonts, font_mono=code),
        "head": views.head(),
        "quiet": True,
    }
