"""`sharpmax app`: serve the explorer on this machine."""

from __future__ import annotations

import socket
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from sharpmax._errors import UserError


def app(
    model: Annotated[
        str,
        typer.Option(
            help="Model to start with: smollm2, a folder, or a model name on the Hugging Face hub.",
            metavar="MODEL",
        ),
    ] = "smollm2",
    calibration: Annotated[
        list[Path] | None,
        typer.Option(
            help="Calibration from sharpmax tune to offer beside the policies. Can be given "
            "several times.",
            metavar="FILE",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. If other machines can reach it, only --model can be "
            "loaded.",
            metavar="ADDRESS",
        ),
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name by which the page is reached, if it is neither an address nor the "
            "machine's own name. Other names are refused. Can be given several times.",
            metavar="NAME",
        ),
    ] = None,
    proxy: Annotated[
        bool,
        typer.Option(
            "--behind-proxy",
            help="All requests come from a proxy that appends the user's address to "
            "X-Forwarded-For: limit each of its users alone.",
        ),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            help="Port to listen on. Default: the first free port from 7860.",
            metavar="N",
            min=1,
            max=65535,
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--open/--no-browser", help="Open the explorer in your browser.")
    ] = False,
) -> None:
    """Explore attention and your own model in the browser.

    The explorer shows what softmax does as inputs grow, the paper's trained heads, and a model of
    yours, plain and sharpened. It runs on this machine and sends nothing elsewhere. Press Ctrl-C
    to stop it.
    """
    _check_address(host, port)
    # Imported late so that `sharpmax --help` does not wait for a framework.
    from sharpmax.app import build, launch
    from sharpmax.app.hosts import LOCAL_HOSTS
    from sharpmax.hf import Calibration

    calibrations = {path.name: Calibration.load(path) for path in calibration or []}
    page = build(model, any_model=host in LOCAL_HOSTS, calibrations=calibrations)
    try:
        address = launch(
            page,
            host=host,
            names=name or (),
            behind_proxy=proxy,
            port=port,
            open_browser=browser,
            wait=False,
        )
    except OSError as error:  # gradio's message names environment variables of its own
        raise _address_error(host, port) from error
    typer.echo(f"sharpmax is at {address} (press Ctrl-C to stop)")
    try:
        Event().wait()
    finally:
        page.close()


def _check_address(host: str, port: int | None) -> None:
    """Raise if the address cannot be used, before any framework is imported."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port or 0), family=family):
            pass
    except OSError as error:
        raise _address_error(host, port) from error


def _address_error(host: str, port: int | None) -> UserError:
    address = host if port is None else f"{host}, port {port}"
    return UserError(f"cannot listen at {address}: give another --host or --port")
