"""The page with its three tabs, and the server for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import gradio as gr

from sharpmax.app import views
from sharpmax.app.connections import limit_connections
from sharpmax.app.hosts import LOCAL_HOSTS, AllowedHosts
from sharpmax.app.model import tab as model_tab
from sharpmax.app.model.model_cache import ModelCache
from sharpmax.app.rate_limit import RateLimit
from sharpmax.app.request_guard import RequestGuard
from sharpmax.app.retrieval import tab as retrieval_tab
from sharpmax.app.softmax import tab as softmax_tab
from sharpmax.hf.loading.loader import DEFAULT
from sharpmax.hf.tune.calibration import Calibration

HOST = LOCAL_HOSTS[0]

MAX_EVENTS = 200
"""Events that may wait; users of a page with more are asked to try again."""
MAX_THREADS = 64
"""Events that may run: twice as many as jobs, which hold a thread each, so that others go on."""
MAX_SESSIONS = 100
"""Sessions that gradio keeps what they were shown of, which is of no use here."""

SHARED_JOB_SECONDS = 120.0
"""How long one job on a shared page may keep the model from the others."""
USER_LIMIT = (100, 5.0)
"""Events that each user of a shared page may start at once, and per second from then on."""
TOTAL_LIMIT = (400, 40.0)
"""The same for all users together."""

INTRODUCTION = (
    "# sharpmax\n"
    "Softmax attention spreads thinner as inputs grow "
    "([arXiv 2410.01104](https://arxiv.org/abs/2410.01104)), and models miss facts in long "
    "prompts. See what helps, what harms, and why."
)


def build(
    model: str = DEFAULT,
    *,
    any_model: bool = True,
    calibrations: Mapping[str, Calibration] | None = None,
) -> gr.Blocks:
    """Build the page of the explorer.

    Args:
        model: The model that the first tab starts with: smollm2, a folder, or a name on the Hugging
            Face hub. It is loaded when it is first used.
        any_model: Whether users can load other models. Switch it off where strangers can reach the
            page.
        calibrations: Calibrations of yours to offer beside the policies, by name.

    Returns:
        The page, to be passed to `launch`.

    Examples:
        >>> from sharpmax.app import build, launch
        >>> launch(build("smollm2"))
    """
    return _run_in_event_loop(lambda: _build(model, any_model, calibrations or {}))


def _build(model: str, any_model: bool, calibrations: Mapping[str, Calibration]) -> gr.Blocks:
    cache = (
        ModelCache(own=model)
        if any_model
        else ModelCache((model,), own=model, job_seconds=SHARED_JOB_SECONDS)
    )
    with gr.Blocks(analytics_enabled=False, title="sharpmax") as page:
        gr.Markdown(INTRODUCTION)
        with gr.Tabs():
            with gr.Tab("Model"):
                model_tab.build_tab(cache, model, calibrations)
            with gr.Tab("Softmax"):
                softmax_tab.build_tab()
            with gr.Tab("Max retrieval"):
                retrieval_tab.build_tab()
        page.unload(model_tab.stop_all_jobs)
    return page.queue(max_size=MAX_EVENTS, api_open=False, default_concurrency_limit=4)


def launch(
    page: gr.Blocks,
    *,
    host: str = HOST,
    names: Collection[str] = (),
    behind_proxy: bool = False,
    port: int | None = None,
    open_browser: bool = False,
    wait: bool = True,
) -> str:
    """Serve the page, and nothing else that gradio could serve.

    Args:
        page: What `build` returned.
        host: Address to listen on. The default can be reached from this machine only; with any
            other, each user may start a limited number of events per second.
        names: Other host names by which the page is reached, such as that of a proxy in front of
            it. Requests for unknown names are refused.
        behind_proxy: Whether all requests come from a proxy that appends the user's address to
            `X-Forwarded-For`. Without it, all users of a proxy count as one.
        port: Port to listen on; None takes the first free port from 7860.
        open_browser: Whether to open the page in the browser.
        wait: Whether to return only after the server has stopped.

    Returns:
        The address of the page, such as `http://127.0.0.1:7860/`.

    Raises:
        OSError: The port is in use.
    """
    settings: dict[str, Any] = {
        "server_name": f"[{host}]" if ":" in host else host,
        "server_port": port,
        "inbrowser": open_browser,
        "max_threads": MAX_THREADS,
        "state_session_capacity": MAX_SESSIONS,
        "app_kwargs": {"lifespan": _guard(page, host, names, behind_proxy)},
    }
    _, address, _ = _run_in_event_loop(
        lambda: page.launch(prevent_thread_lock=True, **settings, **_offline_settings())
    )
    limit_connections(page.server.config)
    if wait:
        page.block_thread()
    return str(address)


def _guard(
    page: gr.Blocks, host: str, names: Collection[str], behind_proxy: bool
) -> Callable[..., Any]:
    """Return what puts our guard before the server's own code, when the server starts."""
    events = {
        number: len(function.inputs)
        for number, function in page.fns.items()
        if any(component is not None for component, _ in function.targets)
    }
    limits = None if host in LOCAL_HOSTS else (RateLimit(*USER_LIMIT), RateLimit(*TOTAL_LIMIT))
    hosts = AllowedHosts.of_server(host, names)

    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[None]:
        # Not by `add_middleware`, whose position is inside gradio's own middleware.
        server.middleware_stack = RequestGuard(
            server.middleware_stack, hosts, events, limits, behind_proxy
        )
        yield

    return lifespan


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
